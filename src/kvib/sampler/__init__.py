"""A policy and a procedure over a population of clients."""

from kvib.sampler.sampler import Sampler

__all__ = ["Sampler"]
