"""Fleets in virtual time: the same engines and the gateway's own decisions, driven by a heap of instants."""
