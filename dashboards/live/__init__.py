"""The live page: what is going on in the fleet now, as values, in words, and as the page that shows both."""
