"""Load experiments on a running endpoint: what fits to their measurements say, and how sure that is."""
