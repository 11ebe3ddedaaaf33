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


class Clock:
    """Adds up the time of calls, by the clock on the wall."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self, function):
        def timed(*given, **options):
            began = time.perf_counter()
            try:
                return function(*given, **options)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


class Watched:
    """A grid whose time is counted."""

    def __init__(self, grid, clock):
        self._grid, self._clock = grid, clock

    def __getattr__(self, name):
        return self._clock(getattr(self._grid, name))


class Timed(UnbiasedSampling):
    """Counts its self-time of a round: what neither the grid nor the wrapped strategy takes."""

    def __init__(self, strategy, **options):
        self.others, self.all = Clock(), Clock()
        for name in ("configure_train", "aggregate_train"):
            setattr(strategy, name, self.others(getattr(strategy, name)))
        super().__init__(strategy, **options)

    @property
    def own(self):
        return self.all.seconds - self.others.seconds

    def configure_train(self, server_round, arrays, config, grid):
        self.others.seconds = self.all.seconds = 0.0
        watched = Watched(grid, self.others)
        return self.all(super().configure_train)(server_round, arrays, config, watched)

    def aggregate_train(self, server_round, replies):
        return self.all(super().aggregate_train)(server_round, replies)


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
            population = strategy.sampler.keys(range(len(strategy.sampler)))
            line = {
                "seconds": time.perf_counter() - began,
                "own": strategy.own,
                "round": strategy.cohort.round,
                "cohort": strategy.sampler.keys(strategy.cohort.ids),
                "coefficients": strategy.cohort.coefficients.tolist(),
                "refused": {str(key): why for key, why in strategy.refused.items()},
                "population": population,
                "weights": strategy.sampler.weights.tolist(),
                "nodes": {str(k): str(strategy.fleet.address(k)) for k in population},
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
