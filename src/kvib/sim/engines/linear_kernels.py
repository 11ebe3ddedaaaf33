"""Softmax regression, compiled. Imported only by the engine that needs it, since it needs numba.

Models are [classes, width]: every inner loop runs along a row, where vectors are wide.
"""

from typing import Any

import numba
import numpy as np

FASTMATH = {"contract", "reassoc", "nsz", "arcp"}
fast = numba.njit(nogil=True, cache=True, fastmath=FASTMATH)
# Threads of numba's own layer wait in a loop for the next round: waking one of Python's costs as
# much as a third of a small round.
threaded = numba.njit(nogil=True, cache=True, fastmath=FASTMATH, parallel=True)

cores = numba.get_num_threads
FOUR = 4  # samples per pass over the model: each of its rows is then loaded once for four


@fast
def padded(length: int) -> int:
    """Up to the next multiple of four."""
    return -(-length // FOUR) * FOUR


@fast
def gather(x: Any, samples: Any, rows: Any) -> None:
    """rows ← x[samples]: all loads before any work, so that their latencies overlap."""
    for t in range(len(samples)):
        i = samples[t]
        for j in range(x.shape[1]):
            rows[t, j] = x[i, j]


@fast
def scores(rows: Any, model: Any, length: int, z: Any) -> None:
    """z[t, k] ← rows[t] · model[k], for `length` samples and up to three more."""
    classes, width = model.shape
    for t in range(0, length, FOUR):
        for k in range(classes):
            z0, z1, z2, z3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for j in range(width):
                w = model[k, j]
                z0 += rows[t, j] * w
                z1 += rows[t + 1, j] * w
                z2 += rows[t + 2, j] * w
                z3 += rows[t + 3, j] * w
            z[t, k], z[t + 1, k], z[t + 2, k], z[t + 3, k] = z0, z1, z2, z3


@fast
def softmax(z: Any, length: int, top: Any, total: Any) -> None:
    """Rows of scores → rows of probabilities exp(z − top)/total; one step for the whole block."""
    classes, flat = z.shape[1], z.ravel()
    for t in range(length):
        highest = z[t, 0]
        for k in range(1, classes):
            highest = max(highest, z[t, k])
        for k in range(classes):
            z[t, k] -= highest
        top[t] = highest
    for i in range(length * classes):
        flat[i] = np.exp(flat[i])
    for t in range(length):
        mass = np.float32(0)
        for k in range(classes):
            mass += z[t, k]
        for k in range(classes):
            z[t, k] *= np.float32(1) / mass
        total[t] = mass


@fast
def accumulate(errors: Any, rows: Any, length: int, gradient: Any) -> None:
    """gradient ← Σ_t errors[t] rows[t]ᵀ; errors beyond `length` are zero."""
    classes, width = gradient.shape
    for k in range(classes):
        for j in range(width):
            gradient[k, j] = np.float32(0)
        for t in range(0, length, FOUR):
            e0, e1, e2, e3 = errors[t, k], errors[t + 1, k], errors[t + 2, k], errors[t + 3, k]
            for j in range(width):
                gradient[k, j] += (
                    e0 * rows[t, j]
                    + e1 * rows[t + 1, j]
                    + e2 * rows[t + 2, j]
                    + e3 * rows[t + 3, j]
                )


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
    room = padded(lengths.max())
    rows = np.zeros((room, width), np.float32)
    errors = np.zeros((room, classes), np.float32)
    top, total = np.empty(room, np.float32), np.empty(room, np.float32)
    for c in clients:
        own[:] = model
        for s in range(first[c], first[c + 1]):
            length = lengths[s]
            batch = samples[starts[s] : starts[s] + length]
            gather(x, batch, rows)
            scores(rows, own, length, errors)
            softmax(errors, length, top, total)
            for t in range(length):
                errors[t, y[batch[t]]] -= np.float32(1)
            errors[length : padded(length)] = np.float32(0)
            accumulate(errors, rows, length, gradient)
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
    block = 64
    rows = np.zeros((block, x.shape[1]), np.float32)
    z = np.empty((block, len(model)), np.float32)
    top, total = np.empty(block, np.float32), np.empty(block, np.float32)
    loss, right = 0.0, 0
    for begin in range(low, high, block):
        length = min(block, high - begin)
        gather(x, np.arange(begin, begin + length), rows)
        scores(rows, model, length, z)
        for t in range(length):
            loss -= z[t, y[begin + t]]
        softmax(z, length, top, total)
        for t in range(length):
            loss += top[t] + np.log(total[t])
            right += np.argmax(z[t]) == y[begin + t]
    return loss, right


@threaded
def train_shares(
    x: Any,
    y: Any,
    samples: Any,
    starts: Any,
    lengths: Any,
    first: Any,
    clients: Any,
    cuts: Any,
    model: Any,
    rate: Any,
    prox: Any,
    out: Any,
) -> None:
    """One thread for each share clients[cuts[w] : cuts[w + 1]]."""
    for w in numba.prange(len(cuts) - 1):
        share = clients[cuts[w] : cuts[w + 1]]
        train(x, y, samples, starts, lengths, first, share, model, rate, prox, out)


@threaded
def evaluate_shares(x: Any, y: Any, cuts: Any, model: Any, out: Any) -> None:
    """out[w] ← sum of losses and number right of the samples cuts[w] to cuts[w + 1]."""
    for w in numba.prange(len(cuts) - 1):
        out[w, 0], out[w, 1] = evaluate(x, y, cuts[w], cuts[w + 1], model)
