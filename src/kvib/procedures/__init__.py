"""How to draw: from expected counts to a cohort."""

from kvib.procedures.balanced import balanced, neighbours
from kvib.procedures.conditional_poisson import conditional_poisson
from kvib.procedures.independent import independent
from kvib.procedures.pivotal import pivotal
from kvib.procedures.procedure import Procedure
from kvib.procedures.systematic import ordered, systematic
from kvib.procedures.with_replacement import with_replacement
from kvib.procedures.without_replacement import without_replacement

__all__ = [
    "Procedure",
    "balanced",
    "conditional_poisson",
    "independent",
    "neighbours",
    "ordered",
    "pivotal",
    "systematic",
    "with_replacement",
    "without_replacement",
]
