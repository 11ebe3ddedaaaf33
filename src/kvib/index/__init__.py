"""Draws from up to 10^8 clients at a cost that grows with the cohort, not with N."""

from kvib.index.index import Index, IndexedDraw

__all__ = ["Index", "IndexedDraw"]
