"""The control process: everything of a gateway that may take time, so that the serving processes only serve."""
