"""A worker without a GPU: the HTTP surface of vLLM, timed by a model of a loaded engine."""
