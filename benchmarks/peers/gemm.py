# mypy: ignore-errors
"""Measure the machine's rates of float32 matrix products, in flop/s, and write them to a file.

One rate is that of a large square product. The other is that of the products in a step of the
FEMNIST CNN, at their own shapes.
"""

import json
import sys
import time
from pathlib import Path

import torch

BATCH = 20


def rate(shapes, repeat):
    """The best rate of many passes over products [m, k] × [k, n]."""
    given = [(torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)) for m, k, n in shapes]
    flop, best = sum(2 * m * k * n for m, k, n in shapes), 0.0
    for _ in range(repeat):
        start = time.perf_counter()
        for a, b, out in given:
            torch.mm(a, b, out=out)
        best = max(best, flop / (time.perf_counter() - start))
    return best


def step_of_cnn():
    """Forward, gradient of the weights, gradient of the input (which the first layer lacks)."""
    layers = [
        (BATCH * 28 * 28, 25, 32),
        (BATCH * 14 * 14, 800, 64),
        (BATCH, 3136, 512),
        (BATCH, 512, 10),
    ]
    forward = layers
    weights = [(k, m, n) for m, k, n in layers]
    inputs = [(m, n, k) for m, k, n in layers[1:]]
    return forward + weights + inputs


rates = {"square": rate([(1024, 1024, 1024)], 100), "layers": rate(step_of_cnn(), 60)}
Path(sys.argv[1]).write_text(json.dumps(rates))
