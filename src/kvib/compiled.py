"""Loops over clients that NumPy cannot express: compiled by numba where it is installed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


@cache
def _jit(kernel: Callable[..., Any]) -> Callable[..., Any]:
    try:
        import numba
    except ImportError:  # NumPy alone suffices: the same source, interpreted
        return kernel
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(cache=True)(kernel)
    except RuntimeError:  # nowhere to write a cache
        compiled = numba.njit(kernel)
    return compiled


def run(kernel: Callable[..., Any], *args: Any, rng: Any = None) -> Any:
    """Call `kernel(*args)`, or `kernel(*args, rng)`, compiled.

    numba draws the same numbers from a NumPy Generator as the interpreter does. Any other source
    of randomness (the tests' enumerating one) runs the same source interpreted.
    """
    if rng is None:
        return _jit(kernel)(*args)
    if isinstance(rng, np.random.Generator):
        return _jit(kernel)(*args, rng)
    return kernel(*args, rng)
