"""Bytes of HTTP and of bodies: where messages end, what heads and bodies say, and what the gateway says itself."""
