"""`ridgeline probe`: load experiments on a running endpoint, what fits to them say, and a report."""
