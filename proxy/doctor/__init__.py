"""`ridgeline doctor`: what is seen of a set-up, and what is wrong or blind in it."""
