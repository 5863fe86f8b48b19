"""The configuration: what can be set, what is wrong with a file, and the values that the processes work with."""
