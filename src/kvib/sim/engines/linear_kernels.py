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
    z = np.empty(classes, np.float32)
    for c in clients:
        own[:] = model
        for s in range(first[c], first[c + 1]):
            gradient[:] = np.float32(0.0)
            for t in range(starts[s], starts[s] + lengths[s]):
                row, label = x[samples[t]], y[samples[t]]
                softmax(row, own, label, z)
                z[label] -= np.float32(1.0)
                for k in range(classes):
                    error = z[k]
                    for j in range(width):
                        gradient[k, j] += error * row[j]
            step = rate / np.float32(lengths[s])
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
