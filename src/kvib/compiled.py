"""Loops over clients that NumPy cannot express: compiled by numba where it is installed."""

import importlib.util
from collections.abc import Callable
from functools import cache, update_wrapper
from inspect import signature
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


@cache
def available() -> bool:
    """Whether kernels are compiled: interpreted, a loop over the numbers of a model is no way."""
    return importlib.util.find_spec("numba") is not None


class Kernel(Generic[P, R]):
    """A function that is compiled when it is first called, so that importing it needs no numba.

    numba draws the same numbers from a NumPy Generator as the interpreter does. With any other
    source of randomness as its last argument, `rng`, the same source runs interpreted.

    A kernel may call kernels of its own file. It calls none of another file: numba keeps compiled
    code on disk until the file of the kernel itself changes.
    """

    def __init__(self, source: Callable[P, R]) -> None:
        update_wrapper(self, source)
        self.source = source
        """The function itself, for the interpreter."""
        self._draws = "rng" in signature(source).parameters

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compiled, unless chance comes from elsewhere than NumPy."""
        if self._draws and not isinstance(args[-1], np.random.Generator):
            return self.source(*args, **kwargs)
        compiled: Callable[P, R] = _jit(self.source)
        return compiled(*args, **kwargs)


kernel = Kernel
"""The decorator."""


@cache
def _jit(source: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function; without numba the function itself, since NumPy alone suffices."""
    try:
        numba = _numba()
    except ImportError:
        return source
    compiled: Callable[..., Any]  # without fastmath: bits must not hang on what is in the cache
    try:
        compiled = numba.njit(cache=True)(source)
    except RuntimeError:  # nowhere to write a cache
        compiled = numba.njit(source)
    return compiled


@cache
def _numba() -> Any:
    """numba, which from now on takes a kernel inside a kernel for the function compiled from it."""
    import numba
    from numba.extending import typeof_impl

    typeof_impl.register(Kernel)(lambda called, _: numba.typeof(_jit(called.source)))
    return numba
