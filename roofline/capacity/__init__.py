"""What fits and how much it serves: memory, Little's law, the knee, targets, call chains, remedies."""
