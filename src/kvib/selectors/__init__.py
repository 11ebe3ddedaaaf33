"""Biased selection, for comparison."""

from kvib.selectors.divfl import DivFL
from kvib.selectors.power_of_choice import PowerOfChoice
from kvib.selectors.selector import Selector

__all__ = ["DivFL", "PowerOfChoice", "Selector"]
