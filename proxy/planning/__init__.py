"""`ridgeline plan`: options, sheet, JSON and plots around `roofline.plan`."""
