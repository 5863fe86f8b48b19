"""What people look at: the live page, and the code that writes what is in ``grafana/``."""
