"""What the gateway costs: beside other proxies (``python -m benchmarks``), and its path alone (``benchmarks.hot_path``)."""
