"""The fleet in a terminal: what `ridgeline top` shows. Pure; `proxy.top` asks the gateway and draws."""
