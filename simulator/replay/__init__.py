"""`ridgeline replay`: recorded request shapes, without content, served again in virtual time by other pools and policies."""
