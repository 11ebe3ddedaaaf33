"""Loops over clients that NumPy cannot express: compiled by numba where it is installed."""

import importlib.util
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np


@cache
def available() -> bool:
    """Whether kernels are compiled: interpreted, a loop over the numbers of a model is no way."""
    return importlib.util.find_spec("numba") is not None


@cache
def _jit(kernel: FunctionType) -> Callable[..., Any]:
    try:
        import numba
    except ImportError:  # NumPy alone suffices: the same source, interpreted
        return kernel
    parts = {name: kernel.__globals__.get(name) for name in kernel.__code__.co_names}
    own = {
        name: _jit(part)
        for name, part in parts.items()
        if isinstance(part, FunctionType) and part.__module__ == kernel.__module__
    }
    if own:  # compiled code can only call compiled code
        about = kernel.__name__, kernel.__defaults__, kernel.__closure__
        module, name = kernel.__module__, kernel.__qualname__
        kernel = FunctionType(kernel.__code__, {**kernel.__globals__, **own}, *about)
        kernel.__module__, kernel.__qualname__ = module, name
    compiled: Callable[..., Any]  # without fastmath: bits must not hang on what is in the cache
    try:
        compiled = numba.njit(cache=True)(kernel)
    except RuntimeError:  # nowhere to write a cache
        compiled = numba.njit(kernel)
    return compiled


def run(kernel: Any, *args: Any, rng: Any = None) -> Any:
    """Call `kernel(*args)`, or `kernel(*args, rng)`, compiled with the functions of its module that
    it calls.

    numba draws the same numbers from a NumPy Generator as the interpreter does. Any other source
    of randomness (the tests' enumerating one) runs the same source interpreted.
    """
    if rng is None:
        return _jit(kernel)(*args)
    if isinstance(rng, np.random.Generator):
        return _jit(kernel)(*args, rng)
    return kernel(*args, rng)
