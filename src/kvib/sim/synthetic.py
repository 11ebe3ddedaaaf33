"""The task Synthetic(α, β) of Li et al. (2020), as the K-Vib paper uses it."""

import numpy as np

from kvib.sim.data import ClientData
from kvib.sim.task import SoftmaxRegression, Task

FEATURES, CLASSES = 60, 10
"""The shape of the model in Li et al. (2020)."""
TRAINING = 0.9
"""The share of a client's samples that it trains on. The rest is test data."""
EQUAL_SIZE = 200
"""The number of samples of every client, training and test, with `equal=True`."""


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
    """Make a task whose clients differ widely in size, each with a linear model of its own.

    Every client draws its size n = int(LogNormal(4, 2)) + 50, then u ~ N(0, α) and B ~ N(0, β)
    (standard deviations). Its samples have v_j ~ N(B, 1), x ~ N(v, diag(j^−1.2)), W, b ~ N(u, 1)
    and y = argmax(xW + b). 90 % of each client's samples are for training, the rest for testing.

    NumPy's legacy generator draws all n, all u, all B, all v, then client by client W, b, x. In
    this order seed 4399 gives the paper's 36,068 samples.

    Args:
        alpha: α, how much local models differ.
        beta: β, how much local data differ.
        clients: The number of clients N.
        seed: The seed of the data.
        iid: Whether all clients share one model (W, b) and one mean v, so that only sizes differ.
        equal: Whether every client has 200 samples, with inputs scaled by LogNormal(0, 1). Norms
            of updates differ then, and no size or weight shows it.
        flat: Whether all clients have the same weight, whatever their sizes.

    Examples:
        >>> from kvib.sim import synthetic
        >>> task = synthetic(clients=5)
        >>> len(task), task.train.x.shape[1], task.classes
        (5, 60, 10)

    References:
        Li et al., "Federated optimization in heterogeneous networks" (FedProx), 2020.
    """
    rng = np.random.RandomState(seed)
    # Sizes, and what every client draws once: n, then u, B and v.
    sizes = rng.lognormal(4, 2, clients).astype(int) + 50
    scale = np.ones(clients)
    if equal:
        sizes[:], scale = EQUAL_SIZE, rng.lognormal(0, 1, clients)
    u = rng.normal(0, alpha, clients)
    B = rng.normal(0, beta, clients)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # √(j^−1.2)
    v = np.array([rng.normal(B[i], 1, FEATURES) for i in range(clients)])
    if iid:
        v[:] = v[0]
        W, b = rng.normal(0, 1, (FEATURES, CLASSES)), rng.normal(0, 1, CLASSES)
    # Client by client: its model W, b, its inputs x, and the classes that its model gives them.
    parts = []
    for i in range(clients):
        if not iid:
            W = rng.normal(u[i], 1, (FEATURES, CLASSES))
            b = rng.normal(u[i], 1, CLASSES)
        x = scale[i] * (v[i] + spread * rng.normal(size=(sizes[i], FEATURES)))
        parts.append((x.astype(np.float32), np.argmax(x @ W + b, axis=1)))
    cut = (TRAINING * sizes).astype(int)
    train = ClientData.of([(x[:c], y[:c]) for (x, y), c in zip(parts, cut, strict=True)])
    test = ClientData.of([(x[c:], y[c:]) for (x, y), c in zip(parts, cut, strict=True)])
    kind = "-iid" * iid + "-equal" * equal + "-flat" * flat
    name = f"synthetic{kind}" if kind else f"synthetic({alpha:g},{beta:g})"
    weights = np.ones(clients) if flat else train.sizes.astype(np.float64)
    model = SoftmaxRegression(FEATURES, CLASSES)
    return Task(name, train, (test.x, test.y), model, CLASSES, weights=weights)
