"""Plays rounds and writes down what happened, line by line."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower import EstimateAvailability, Renormalise, UnbiasedSampling

app = ServerApp()


class Watched:
    """A grid that counts the time spent in it.

    All in processor time of this thread: others use the cores, too.
    """

    def __init__(self, grid):
        self.grid, self.seconds = grid, 0.0

    def __getattr__(self, name):
        def timed(*given, **options):
            began = time.thread_time()
            try:
                return getattr(self.grid, name)(*given, **options)
            finally:
                self.seconds += time.thread_time() - began

        return timed


class Timed(UnbiasedSampling):
    """Counts its own time: without the grid's, and what stock FedAvg takes for the replies."""

    own = stock = 0.0

    def configure_train(self, server_round, arrays, config, grid):
        watched, began = Watched(grid), time.thread_time()
        messages = super().configure_train(server_round, arrays, config, watched)
        self.own = time.thread_time() - began - watched.seconds
        return messages

    def aggregate_train(self, server_round, replies):
        began = time.thread_time()
        FedAvg(fraction_evaluate=0.0).aggregate_train(server_round, replies)
        self.stock = time.thread_time() - began
        began = time.thread_time()
        result = super().aggregate_train(server_round, replies)
        self.own += time.thread_time() - began - self.stock
        return result


@app.main()
def main(grid, context):
    config = context.run_config
    folder = Path(config["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    strategy = Timed(
        FedAvg(min_available_nodes=config["clients"], fraction_evaluate=0.0),
        budget=config["budget"],
        journal=folder / "run.kvib" if config["journal"] else None,
        offline=Renormalise() if config["renormalise"] else EstimateAvailability(),
        guard=None,
    )
    x = np.zeros(610, np.float32) if config["work"] == "linear" else np.zeros(3)
    if (folder / "model.npy").exists():
        x = np.load(folder / "model.npy")
    began = time.perf_counter()

    def write(server_round, arrays):
        nonlocal began
        np.save(folder / "model.npy", arrays["x"].numpy())
        if server_round > 0:
            line = {
                "seconds": time.perf_counter() - began - strategy.stock,
                "own": strategy.own,
                "stock": strategy.stock,
                "round": strategy.cohort.round,
                "cohort": strategy.sampler.keys(strategy.cohort.ids),
                "coefficients": strategy.cohort.coefficients.tolist(),
                "refused": {str(key): why for key, why in strategy.refused.items()},
                "population": strategy.sampler.keys(range(len(strategy.sampler))),
                "weights": strategy.sampler.weights.tolist(),
                "nodes": {str(k): str(a) for k, a in strategy.fleet._addresses.items()},
                "x": arrays["x"].numpy()[:3].tolist(),
            }
            with open(folder / "rounds.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        began = time.perf_counter()
        return MetricRecord({"round": server_round})

    strategy.start(
        grid,
        ArrayRecord({"x": Array(x)}),
        num_rounds=config["rounds"],
        timeout=config["timeout"],
        evaluate_fn=write,
    )
