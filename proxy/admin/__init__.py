"""The admin listener: who may use it, what it shows and what it changes."""
