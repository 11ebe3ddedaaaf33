"""Kernels: compiled at their first call, interpreted where chance is not NumPy's."""

import importlib
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from enumeration import outcomes
from kvib.compiled import Kernel, kernel

SOURCE = Path(__file__).parents[1] / "src"
HOMES = [p for p in sorted(SOURCE.rglob("*.py")) if "\n@kernel" in p.read_text()]


@kernel
def doubled(x):
    return 2 * x


@kernel
def heads(n, p, rng):
    found = 0
    for _ in range(n):
        if rng.random() < p:
            found += 1
    return doubled(found)


def test_a_kernel_in_a_kernel():
    draws = np.random.default_rng(1).random(9) < 0.5
    assert heads(9, 0.5, np.random.default_rng(1)) == 2 * draws.sum()


def test_any_other_source_of_chance_is_interpreted():
    chances = dict.fromkeys((0, 2, 4), 0.0)
    for probability, found in outcomes(lambda rng: heads(2, 0.25, rng)):
        chances[found] += probability
    assert list(chances.values()) == pytest.approx([0.75**2, 2 * 0.75 * 0.25, 0.25**2])


def test_there_are_kernels():
    assert len(HOMES) >= 6


@pytest.mark.parametrize("path", HOMES, ids=lambda p: p.stem)
def test_kernels_call_those_of_their_own_file(path):
    """numba's cache of a kernel looks at the kernel's file alone."""
    module = importlib.import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    kernels = [x for x in vars(module).values() if isinstance(x, Kernel)]
    assert kernels
    assert {each.__module__ for each in kernels} == {module.__name__}
    for each in kernels:
        named = [vars(module).get(name) for name in each.source.__code__.co_names]
        assert all(x is np or x is math for x in named if isinstance(x, ModuleType))
