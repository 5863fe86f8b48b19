"""`ridgeline replay`: what other pools and policies would have done with recorded requests, in words, tables and plots."""
