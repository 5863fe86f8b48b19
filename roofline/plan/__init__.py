"""A capacity sheet as values: every figure with what it is made of, warnings in the order in which things give out."""
