"""Where finished records go."""
