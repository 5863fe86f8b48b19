"""Prometheus rules as code: what is recorded, and what wakes whom up."""
