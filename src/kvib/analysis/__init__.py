"""A look at a federation: exact measures, the paper's bounds, and which option would help."""
