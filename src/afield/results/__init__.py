"""What runs did: records as JSON lines, selectors over them, and tables. Nothing here imports torch."""
