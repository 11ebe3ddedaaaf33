"""Arrays in files: written as a whole, sealed, and checked when they are read."""
