"""The bytes of vLLM's answers, format by format."""
