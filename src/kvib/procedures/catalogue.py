"""All procedures of kvib, one line each.

Five things follow from this list: `kvib.X`, `kvib.procedures.X`, the names in state files and
experiments, the contract of the tests, and the reference page.
"""

from kvib.procedures.balanced import balanced as balanced
from kvib.procedures.balanced import neighbours as neighbours
from kvib.procedures.conditional_poisson import conditional_poisson as conditional_poisson
from kvib.procedures.independent import independent as independent
from kvib.procedures.pivotal import pivotal as pivotal
from kvib.procedures.systematic import ordered as ordered
from kvib.procedures.systematic import systematic as systematic
from kvib.procedures.with_replacement import with_replacement as with_replacement
from kvib.procedures.without_replacement import without_replacement as without_replacement
