"""A configuration from that of another gateway: LiteLLM's proxy, vLLM's production-stack and vllm-router."""
