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
    """A grid that counts the time spent in it."""

    def __init__(self, grid):
        self.grid, self.seconds, self.working = grid, 0.0, 0.0

    def __getattr__(self, name):
        def timed(*given, **options):
            began, worked = time.perf_counter(), time.thread_time()
            try:
                return getattr(self.grid, name)(*given, **options)
            finally:
                self.seconds += time.perf_counter() - began
                self.working += time.thread_time() - worked

        return timed


class Timed(UnbiasedSampling):
    """Counts its own time of a round, all but the grid's: what the wrapped strategy takes, too."""

    own = working = 0.0
    """By the clock on the wall, and by the processor's."""

    def configure_train(self, server_round, arrays, config, grid):
        watched, began, worked = Watched(grid), time.perf_counter(), time.thread_time()
        messages = super().configure_train(server_round, arrays, config, watched)
        self.own = time.perf_counter() - began - watched.seconds
        self.working = time.thread_time() - worked - watched.working
        return messages

    def aggregate_train(self, server_round, replies):
        began, worked = time.perf_counter(), time.thread_time()
        result = super().aggregate_train(server_round, replies)
        self.own += time.perf_counter() - began
        self.working += time.thread_time() - worked
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
                "seconds": time.perf_counter() - began,
                "own": strategy.own,
                "working": strategy.working,
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
