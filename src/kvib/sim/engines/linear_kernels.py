"""Softmax regression, compiled. Imported only by the engine that needs it, since it needs numba.

Models are [classes, width]: every inner loop runs along a row, where vectors are wide.
"""

from typing import Any

import numba
import numpy as np

fast = numba.njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz", "arcp"})


@fast
def softmax(row: Any, model: Any, label: int, z: Any) -> Any:
    """z ← probabilities of the classes; returns the loss."""
    classes, width = model.shape
    top = np.float32(-np.inf)
    for k in range(classes):
        dot = np.float32(0.0)
        for j in range(width):
            dot += row[j] * model[k, j]
        z[k] = dot
        top = max(top, dot)
    chosen, total = z[label] - top, np.float32(0.0)
    for k in range(classes):
        z[k] = np.exp(z[k] - top)
        total += z[k]
    for k in range(classes):
        z[k] /= total
    return np.log(total) - chosen


@fast
def train(
    x: Any,
    y: Any,
    samples: Any,
    starts: Any,
    lengths: Any,
    first: Any,
    clients: Any,
    model: Any,
    rate: Any,
    prox: Any,
    out: Any,
) -> None:
    """Local SGD of some clients, one after another."""
    classes, width = model.shape
    own, gradient = np.empty_like(model), np.empty_like(model)
    room = -(-lengths.max() // 4) * 4
    rows = np.zeros((room, width), np.float32)
    errors = np.zeros((room, classes), np.float32)
    for c in clients:
        own[:] = model
        for s in range(first[c], first[c + 1]):
            begin, length = starts[s], lengths[s]
            # All rows first: independent loads, whose latencies overlap.
            for t in range(length):
                i = samples[begin + t]
                for j in range(width):
                    rows[t, j] = x[i, j]
            for t in range(length):
                label = y[samples[begin + t]]
                softmax(rows[t], own, label, errors[t])
                errors[t, label] -= np.float32(1.0)
            padded = -(-length // 4) * 4
            errors[length:padded] = np.float32(0.0)
            for k in range(classes):
                for j in range(width):
                    gradient[k, j] = np.float32(0.0)
                for t in range(0, padded, 4):  # a row of the gradient is touched once for four
                    e0, e1, e2, e3 = (
                        errors[t, k],
                        errors[t + 1, k],
                        errors[t + 2, k],
                        errors[t + 3, k],
                    )
                    for j in range(width):
                        gradient[k, j] += (
                            e0 * rows[t, j]
                            + e1 * rows[t + 1, j]
                            + e2 * rows[t + 2, j]
                            + e3 * rows[t + 3, j]
                        )
            step = rate / np.float32(length)
            for k in range(classes):
                for j in range(width):
                    pull = prox * (own[k, j] - model[k, j])
                    own[k, j] -= step * gradient[k, j] + rate * pull
        for k in range(classes):
            for j in range(width):
                out[c, k, j] = model[k, j] - own[k, j]


@fast
def evaluate(x: Any, y: Any, low: int, high: int, model: Any) -> Any:
    """Sum of losses, and how many are right."""
    z = np.empty(len(model), np.float32)
    loss, right = 0.0, 0
    for i in range(low, high):
        loss += softmax(x[i], model, y[i], z)
        right += np.argmax(z) == y[i]
    return loss, right
