"""Draws from 10^8 clients whose cost is that of the drawn."""

from kvib.index.index import Index, IndexedDraw

__all__ = ["Index", "IndexedDraw"]
