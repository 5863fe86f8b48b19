"""Model shapes from config.json, by name or inline."""
