"""Towards workers: connections, attempts, what comes back, and what each has to do."""
