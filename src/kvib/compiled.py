"""Kernels: loops over clients that NumPy cannot express.

numba compiles them where it is installed. Without numba they run interpreted.
"""

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
    """Whether kernels are compiled. Interpreted, a loop over a model's numbers is too slow."""
    return importlib.util.find_spec("numba") is not None


class Kernel(Generic[P, R]):
    """A function that is compiled when it is first called, so that importing it needs no numba.

    numba draws the same numbers from a NumPy Generator as the interpreter does. If the last
    argument, `rng`, is any other source of randomness, the function runs interpreted.

    A kernel may call kernels of its own file, but none of another file. numba caches compiled code
    on disk until the file of the kernel changes, and does not notice changes in other files.
    """

    def __init__(self, source: Callable[P, R]) -> None:
        update_wrapper(self, source)
        self.source = source
        """The function as it was written, for the interpreter."""
        self._draws = "rng" in signature(source).parameters

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the compiled function, or the interpreted one if `rng` is not a NumPy Generator."""
        if self._draws and not isinstance(args[-1], np.random.Generator):
            return self.source(*args, **kwargs)
        compiled: Callable[P, R] = _jit(self.source)
        return compiled(*args, **kwargs)


kernel = Kernel
"""The decorator that makes a function a `Kernel`."""


@cache
def _jit(source: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function. Without numba, which is optional, it is the function itself."""
    try:
        numba = _numba()
    except ImportError:
        return source
    # No fastmath: results must not depend on which compiled version is in the cache.
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(cache=True)(source)
    except RuntimeError:  # no folder for the cache can be written
        compiled = numba.njit(source)
    return compiled


@cache
def _numba() -> Any:
    """The module numba, after it has learned how to compile a kernel that calls a kernel."""
    import numba
    from numba.extending import typeof_impl

    typeof_impl.register(Kernel)(lambda inner, _: numba.typeof(_jit(inner.source)))
    return numba
