"""The kernels of softmax regression, compiled by numba. Only the linear engine imports them.

Models are [classes, width]: every inner loop runs along a row, where vectors are wide.

The order and the rounding of every operation are fixed here. The compiler chooses vectors and what
to inline, but it cannot change the results. Bits depend neither on threads nor on which function
was compiled when and which came from a cache. There is therefore no fastmath, sums along rows and
their multiply-adds are explicit, and the exponential is our own.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

fast = numba.njit(nogil=True, cache=True)
# Threads of numba's own layer wait in a loop for the next round: waking one of Python's costs as
# much as a third of a small round.
threaded = numba.njit(nogil=True, cache=True, parallel=True)

cores = numba.get_num_threads
FOUR = 4
"""Samples per pass over the model: each row of the model is loaded once for four samples."""
BYTES = 64
"""Bytes of the lanes in which a row is added up: whole vectors on every CPU."""
BLOCK = 64
"""Samples that `evaluate` takes at a time."""
PIECE = 256
"""Columns that `gram` takes at a time, so that its rows stay in the cache."""


def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return a(a, b, c), generate


def _products(typing: Any, rows: Any, t: Any, others: Any, k: Any) -> Any:
    """rows[t + n] · others[k] for n = 0 to 3.

    Each product is summed in lanes along the row, and then the lanes are added in halves. Rows hold
    a multiple of 64 bytes. The vectors are written by hand, because a compiler vectorises a sum in
    a loop only where it may reorder the sum.
    """
    number = rows.dtype
    lanes = BYTES * 8 // number.bitwidth

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(context.get_value_type(number), lanes)
        multiply_add = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector, [vector] * 3),
            f"llvm.fma.v{lanes}f{number.bitwidth}",
        )
        many, first, other, row = args
        whole = first.type

        def start(of: Any, array: Any, i: Any) -> Any:
            """The address of row i, as a pointer to vectors."""
            view, zero = context.make_array(of)(context, builder, array), ir.Constant(whole, 0)
            pointer = cgutils.get_item_pointer(context, builder, of, view, (i, zero))
            return builder.bitcast(pointer, vector.as_pointer())

        def load(pointer: Any, j: Any) -> Any:
            return builder.load(builder.gep(pointer, [j]), align=number.bitwidth // 8)

        # Addresses of the four rows and of the other row, and four sums that start at zero.
        four = [builder.add(first, ir.Constant(whole, n)) for n in range(FOUR)]
        left, right = [start(rows, many, i) for i in four], start(others, other, row)
        zeros = ir.Constant(vector, [0.0] * lanes)
        sums = [cgutils.alloca_once_value(builder, zeros) for _ in four]
        # sums[n] ← rows[t + n]·w + sums[n], vector by vector along the row.
        width = builder.extract_value(context.make_array(others)(context, builder, other).shape, 1)
        with cgutils.for_range(builder, builder.udiv(width, ir.Constant(whole, lanes))) as loop:
            w = load(right, loop.index)
            for pointer, total in zip(left, sums, strict=True):
                factors = load(pointer, loop.index), w, builder.load(total)
                builder.store(builder.call(multiply_add, factors), total)
        return cgutils.pack_array(builder, [_added(builder, builder.load(s)) for s in sums])

    return types.UniTuple(number, FOUR)(rows, t, others, k), generate


def _added(builder: Any, vector: Any) -> Any:
    """The sum of a vector's lanes: the two halves are added, then the halves of that, and so on."""
    half, position = vector.type.count // 2, ir.IntType(32)
    if half == 0:
        return builder.extract_element(vector, ir.Constant(position, 0))
    low, high = (
        ir.Constant(ir.VectorType(position, half), [*range(begin, begin + half)])
        for begin in (0, half)
    )
    halves = [builder.shuffle_vector(vector, vector, places) for places in (low, high)]
    return _added(builder, builder.fadd(*halves))


fma: Any = extending.intrinsic(_fma)
products: Any = extending.intrinsic(_products)


@fast
def padded(length: int) -> int:
    """The next multiple of four."""
    return -(-length // FOUR) * FOUR


@fast
def gather(x: Any, samples: Any, rows: Any) -> None:
    """rows ← x[samples]. All loads come before any work, so that their latencies overlap."""
    for t in range(len(samples)):
        i = samples[t]
        for j in range(x.shape[1]):
            rows[t, j] = x[i, j]


@fast
def scores(rows: Any, model: Any, length: int, z: Any) -> None:
    """z[t, k] ← rows[t] · model[k], for `length` samples and up to three more."""
    for t in range(0, length, FOUR):
        for k in range(len(model)):
            z[t, k], z[t + 1, k], z[t + 2, k], z[t + 3, k] = products(rows, t, model, k)


ONE = np.float32(1)
LOWEST = np.float32(-87)
"""The smallest argument of `exponential`: e^−87 is still a normal number in single precision."""
SHIFT = np.float32(1.5 * 2**23)
"""Adding it rounds a number to the nearest whole one, which then lies in the last bits."""
EXPONENT_BIAS, EXPONENT_AT = np.int32(127), np.int32(23)
"""A float32 holds its exponent plus 127, from bit 23 on."""
LOG_2, LOG_2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts. The first has nine bits, so that n·LOG_2 is exact."""
LOG2_E = np.float32(1.4426950408889634)
C2, C3, C4, C5, C6, C7 = (np.float32(1 / k) for k in (2, 6, 24, 120, 720, 5040))
"""Taylor's coefficients 1/k! of the exponential."""


@fast
def exponential(x: Any) -> Any:
    """exp(x) of an x ≤ 0, within two units in the last place. Below −87 it is exp(−87).

    exp(x) = 2^n·e^r with a whole n and |r| ≤ log(2)/2.
    """
    x = LOWEST if x < LOWEST else x  # NaN stays NaN
    # n = x/ln 2 rounded to a whole number, and r = x − n·ln 2.
    shifted = fma(x, LOG2_E, SHIFT)  # n is in its last bits
    n = shifted - SHIFT
    r = fma(n, -LOG_2_REST, fma(n, -LOG_2, x))
    # e^r = 1 + r + r²·series, and 2^n by writing n into the bits of the exponent.
    series = fma(fma(fma(fma(fma(C7, r, C6), r, C5), r, C4), r, C3), r, C2)
    power = np.int32((np.float32(shifted).view(np.int32) + EXPONENT_BIAS) << EXPONENT_AT)
    return (fma(series * r, r, r) + ONE) * power.view(np.float32)


@fast
def softmax(z: Any, length: int, top: Any, total: Any) -> None:
    """Turn rows of scores into rows of probabilities exp(z − top)/total.

    Each step runs over the whole block before the next begins.
    """
    classes, flat = z.shape[1], z.ravel()
    # z ← z − top, where top is the largest score of a row.
    for t in range(length):
        highest = z[t, 0]
        for k in range(1, classes):
            highest = max(highest, z[t, k])
        for k in range(classes):
            z[t, k] -= highest
        top[t] = highest
    # z ← exp(z).
    for i in range(length * classes):
        flat[i] = exponential(flat[i])
    # z ← z/total, where total is the sum of a row.
    for t in range(length):
        mass = np.float32(0)
        for k in range(classes):
            mass += z[t, k]
        for k in range(classes):
            z[t, k] *= ONE / mass
        total[t] = mass


@fast
def accumulate(errors: Any, rows: Any, length: int, gradient: Any) -> None:
    """gradient ← Σ_t errors[t] rows[t]ᵀ. Errors beyond `length` are zero."""
    classes, width = gradient.shape
    for k in range(classes):
        for j in range(width):
            gradient[k, j] = np.float32(0)
        for t in range(0, length, FOUR):
            e0, e1, e2, e3 = errors[t, k], errors[t + 1, k], errors[t + 2, k], errors[t + 3, k]
            for j in range(width):
                g = fma(e0, rows[t, j], gradient[k, j])
                g = fma(e1, rows[t + 1, j], g)
                g = fma(e2, rows[t + 2, j], g)
                gradient[k, j] = fma(e3, rows[t + 3, j], g)


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
    low: int,
    high: int,
) -> None:
    """out[c] ← x − x_c after the local SGD of each client c of clients[low:high]."""
    # Room for the largest batch, used again by every step.
    classes, width = model.shape
    own, gradient = np.empty_like(model), np.empty_like(model)
    room = padded(lengths.max())
    rows = np.zeros((room, width), np.float32)
    errors = np.zeros((room, classes), np.float32)
    top, total = np.empty(room, np.float32), np.empty(room, np.float32)
    for c in clients[low:high]:
        own[:] = model
        for s in range(first[c], first[c + 1]):
            length = lengths[s]
            batch = samples[starts[s] : starts[s] + length]
            # Probabilities p of the classes of every sample in the batch.
            gather(x, batch, rows)
            scores(rows, own, length, errors)
            softmax(errors, length, top, total)
            # The gradient Σ (p − 1_y)·xᵀ of the summed loss.
            for t in range(length):
                errors[t, y[batch[t]]] -= np.float32(1)
            errors[length : padded(length)] = np.float32(0)
            accumulate(errors, rows, length, gradient)
            # x_c ← x_c − η·(gradient/length + μ(x_c − x)).
            step = rate / np.float32(length)
            for k in range(classes):
                for j in range(width):
                    pull = prox * (own[k, j] - model[k, j])
                    own[k, j] -= step * gradient[k, j] + rate * pull
        # The update of the client.
        for k in range(classes):
            for j in range(width):
                out[c, k, j] = model[k, j] - own[k, j]


@fast
def evaluate(
    x: Any, y: Any, model: Any, gap: Any, mass: Any, right: Any, low: int, high: int
) -> None:
    """Judge samples low to high: the loss is gap + log(mass), and right says whether the class is.

    gap = top − z_y and mass = Σ exp(z − top), where top is the largest score.
    """
    rows = np.zeros((BLOCK, x.shape[1]), np.float32)
    z = np.empty((BLOCK, len(model)), np.float32)
    top, total = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for begin in range(low, high, BLOCK):
        length = min(BLOCK, high - begin)
        gather(x, np.arange(begin, begin + length), rows)
        scores(rows, model, length, z)
        for t in range(length):
            gap[begin + t] = -z[t, y[begin + t]]
        softmax(z, length, top, total)
        for t in range(length):
            gap[begin + t] += top[t]
            mass[begin + t] = total[t]
            right[begin + t] = np.argmax(z[t]) == y[begin + t]


@fast
def gram(a: Any, b: Any, out: Any, low: int, high: int) -> None:
    """out[i, j] += a[i] · b[j] of rows low to high, in pieces of columns that stay in the cache.

    b has a multiple of four rows.
    """
    for begin in range(0, a.shape[1], PIECE):
        some, others = a[:, begin : begin + PIECE], b[:, begin : begin + PIECE]
        for j in range(0, len(b), FOUR):
            for i in range(low, high):
                s0, s1, s2, s3 = products(others, j, some, i)
                out[i, j] += s0
                out[i, j + 1] += s1
                out[i, j + 2] += s2
                out[i, j + 3] += s3


# The same kernels in threads. Share w is from cuts[w] to cuts[w + 1].


@threaded
def train_shares(
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
    cuts: Any,
) -> None:
    """Run `train` for every share of the clients."""
    for w in numba.prange(len(cuts) - 1):
        low, high = cuts[w], cuts[w + 1]
        train(x, y, samples, starts, lengths, first, clients, model, rate, prox, out, low, high)


@threaded
def evaluate_shares(x: Any, y: Any, model: Any, gap: Any, mass: Any, right: Any, cuts: Any) -> None:
    """Run `evaluate` for every share of the samples."""
    for w in numba.prange(len(cuts) - 1):
        evaluate(x, y, model, gap, mass, right, cuts[w], cuts[w + 1])


@threaded
def gram_shares(a: Any, b: Any, out: Any, cuts: Any) -> None:
    """Run `gram` for every share of the rows."""
    for w in numba.prange(len(cuts) - 1):
        gram(a, b, out, cuts[w], cuts[w + 1])
