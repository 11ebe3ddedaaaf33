"""Biased selection of clients, for comparison."""

from kvib.selectors.divfl import DivFL
from kvib.selectors.power_of_choice import PowerOfChoice
from kvib.selectors.selector import Rule, Selector

RULES: dict[str, type[Rule]] = {rule.__name__: rule for rule in (PowerOfChoice, DivFL)}
"""The rules by their names."""

__all__ = ["RULES", "DivFL", "PowerOfChoice", "Rule", "Selector"]
