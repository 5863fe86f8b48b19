"""The engine: continuous batching, KV blocks and step times, without I/O and without a clock."""
