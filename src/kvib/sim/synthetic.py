"""Synthetic(α, β) of Li et al. (2020), as the paper uses it."""

import numpy as np

from kvib.sim.data import ClientData
from kvib.sim.task import SoftmaxRegression, Task

FEATURES, CLASSES = 60, 10


def synthetic(
    alpha: float = 0.0,
    beta: float = 0.0,
    *,
    clients: int = 100,
    seed: int = 4399,
    iid: bool = False,
    equal: bool = False,
    flat: bool = False,
) -> Task:
    """Clients of very different size, each with a linear model of its own.

    n = int(LogNormal(4, 2)) + 50; u ~ N(0, α), B ~ N(0, β) (standard deviations);
    v_j ~ N(B, 1); x ~ N(v, diag(j^−1.2)); W, b ~ N(u, 1); y = argmax(xW + b). 90 % of each client's
    samples are for training. Drawn with NumPy's legacy generator in the order all n, all u, all B,
    all v, then client by client W, b, x, so that seed 4399 gives the paper's 36,068 samples.

    Args:
        alpha: how much local models differ.
        beta: how much local data differ.
        clients: N.
        seed: of the data.
        iid: one model (W, b) and one mean v for all clients; only sizes differ.
        equal: 200 samples each, inputs scaled by LogNormal(0, 1): norms differ and nothing tells.
        flat: equal weights, whatever the sizes.
    """
    rng = np.random.RandomState(seed)
    sizes = rng.lognormal(4, 2, clients).astype(int) + 50
    scale = np.ones(clients)
    if equal:
        sizes[:], scale = 200, rng.lognormal(0, 1, clients)
    u = rng.normal(0, alpha, clients)
    B = rng.normal(0, beta, clients)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # √(j^−1.2)
    v = np.array([rng.normal(B[i], 1, FEATURES) for i in range(clients)])
    if iid:
        v[:] = v[0]
        W, b = rng.normal(0, 1, (FEATURES, CLASSES)), rng.normal(0, 1, CLASSES)
    parts = []
    for i in range(clients):
        if not iid:
            W = rng.normal(u[i], 1, (FEATURES, CLASSES))
            b = rng.normal(u[i], 1, CLASSES)
        x = scale[i] * (v[i] + spread * rng.normal(size=(sizes[i], FEATURES)))
        parts.append((x.astype(np.float32), np.argmax(x @ W + b, axis=1)))
    cut = (0.9 * sizes).astype(int)
    train = ClientData.of([(x[:c], y[:c]) for (x, y), c in zip(parts, cut, strict=True)])
    test = ClientData.of([(x[c:], y[c:]) for (x, y), c in zip(parts, cut, strict=True)])
    kind = "-iid" * iid + "-equal" * equal + "-flat" * flat
    name = f"synthetic{kind}" if kind else f"synthetic({alpha:g},{beta:g})"
    weights = np.ones(clients) if flat else train.sizes.astype(np.float64)
    model = SoftmaxRegression(FEATURES, CLASSES)
    return Task(name, train, (test.x, test.y), model, CLASSES, weights=weights)
