"""The serving process: one request from its client to its record."""
