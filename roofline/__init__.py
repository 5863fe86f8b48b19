"""How fast a request could be on given GPUs: pure arithmetic that a capacity planner and a live gateway both use."""
