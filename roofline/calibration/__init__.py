"""Losses refitted from requests, a frozen reference, and drift against it."""
