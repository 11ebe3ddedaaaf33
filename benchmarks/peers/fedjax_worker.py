# mypy: ignore-errors
"""FedJAX's for_each_client (jit) on padded, masked batches, and its tree mean."""

import sys
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

jax.tree_map = jax.tree_util.tree_map  # gone from JAX, still called by FedJAX 0.0.17

import fedjax  # noqa: E402
from fedjax.algorithms.fed_avg import create_train_for_each_client  # noqa: E402
from fedjax.core import tree_util  # noqa: E402
from work import Stopwatch, read, write  # noqa: E402

MASK = fedjax.EXAMPLE_MASK_KEY


def linear(w, x):
    return x @ w[0] + w[1]


def cnn(w, x):
    """Channels last, JAX's own layout: the weights are turned once, before the rounds."""
    for kernel, bias in (w[0:2], w[2:4]):
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + bias)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ w[4] + w[5])
    return x @ w[6] + w[7]


def channels_last(w):
    kernels = [w[i].transpose(2, 3, 1, 0) for i in (0, 2)]
    dense = w[4].reshape(512, 64, 7, 7).transpose(2, 3, 1, 0).reshape(-1, 512)
    return [kernels[0], w[1], kernels[1], w[3], dense, w[5], w[6].T, w[7]]


work = read(sys.argv[1])
images = work.model == "cnn"
apply = cnn if images else linear
weights = channels_last(work.weights) if images else work.weights
x = np.ascontiguousarray(work.x.transpose(0, 2, 3, 1)) if images else work.x


def losses(w, x, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(apply(w, x)), y[:, None], axis=1)[:, 0]


def gradient(w, batch, rng):
    del rng

    def mean_loss(w):
        return jnp.sum(losses(w, batch["x"], batch["y"]) * batch[MASK]) / jnp.sum(batch[MASK])

    return jax.grad(mean_loss)(w)


train = create_train_for_each_client(gradient, fedjax.optimizers.sgd(work.learning_rate))
server, watch, key = [jnp.asarray(w) for w in weights], Stopwatch(work), jax.random.PRNGKey(0)
for cohort in work.rows():
    clients = [
        (
            i,
            fedjax.ClientDataset({"x": x[samples], "y": work.y[samples]}).padded_batch(
                batch_size=work.batch_size, num_batch_size_buckets=2
            ),
            key,
        )
        for i, samples in enumerate(cohort)
    ]
    mean = tree_util.tree_mean((delta, 1.0) for _, delta in train(server, clients))
    server = jax.block_until_ready(jax.tree_util.tree_map(jnp.subtract, server, mean))
    watch.round_ended()

total, n = 0.0, 0
for piece, labels in work.judged():
    piece = piece.transpose(0, 2, 3, 1) if images else piece
    total, n = total + float(losses(server, piece, labels).sum()), n + len(labels)
note = f"jax {jax.__version__}, jit backend, jax.tree_map restored"
write("FedJAX", version("fedjax"), watch, total / n, note)
