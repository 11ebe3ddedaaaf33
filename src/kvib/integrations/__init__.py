"""Adapters that run kvib inside other frameworks. Each needs its framework installed."""
