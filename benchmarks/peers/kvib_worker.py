# mypy: ignore-errors
"""kvib's engines on the given cohorts: compiled softmax regression, or torch on the CPU."""

import sys
from functools import partial

import numpy as np
from work import Stopwatch, read, write

import kvib
from kvib.sim import ClientData, LinearEngine, LocalSGD, SoftmaxRegression, Task
from kvib.sim.femnist import cnn
from kvib.sim.local import local_batches

work = read(sys.argv[1])
data, local = ClientData(work.x, work.y, work.sizes), LocalSGD(work.learning_rate, work.batch_size)
judged = tuple(np.concatenate(pieces) for pieces in zip(*work.judged(), strict=True))
if work.model == "linear":
    model = SoftmaxRegression(work.x.shape[1], work.classes)
    engine = LinearEngine(Task("peers", data, judged, model, work.classes), local)
    weights, note = [w.T for w in work.weights], f"linear engine, {engine.threads} threads"
else:
    import torch

    from kvib.sim.engines.torch_engine import TorchEngine

    engine = TorchEngine(Task("peers", data, judged, partial(cnn, work.classes)), local)
    weights, note = work.weights, f"torch {torch.__version__}, {torch.get_num_threads()} threads"

for t, (cohort, rows) in enumerate(zip(work.cohorts, work.rows(), strict=True)):
    index = local_batches(data, cohort, local, work.seed, t).samples
    assert np.array_equal(index, np.concatenate(rows)), "kvib would train on other batches"

model, watch = engine.from_numpy(np.concatenate([w.ravel() for w in weights])), Stopwatch(work)
for t, cohort in enumerate(work.cohorts):  # the first compile, and are not timed
    updates = engine.updates(model, local_batches(data, cohort, local, work.seed, t))
    model = model - engine.combine(np.full(len(cohort), 1 / len(cohort)), updates)
    watch.round_ended()

write("kvib", kvib.__version__, watch, engine.evaluate(model, "test").loss, note)
