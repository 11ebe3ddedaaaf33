"""A look at a federation: exact measures, the paper's bounds, and which lever would help."""
