"""How clients are drawn: a procedure turns expected counts into a cohort.

`catalogue` lists the procedures. `Procedure`, `Indexed`, `Pairs` and `Incomplete` are for authors
of procedures.
"""

import typing

from kvib.cohort import Incomplete as Incomplete
from kvib.cohort import Pairs as Pairs
from kvib.procedures import catalogue as catalogue
from kvib.procedures.catalogue import *  # noqa: F403
from kvib.procedures.procedure import Indexed as Indexed
from kvib.procedures.procedure import Procedure as Procedure

if not typing.TYPE_CHECKING:  # type checkers read the imports, which list each name once
    __all__ = [name for name in vars(catalogue) if not name.startswith("_")]
    __all__ += ["Incomplete", "Indexed", "Pairs", "Procedure"]
