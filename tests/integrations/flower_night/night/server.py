"""Writes down every round as the strategy reports it."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower import EstimateAvailability, UnbiasedSampling

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    folder = Path(config["folder"])
    folder.mkdir(parents=True, exist_ok=True)

    def write(report):
        lines = {
            **report.metrics(),
            "answered": [str(key) for key in report.answered],
            "joined": [str(key) for key in report.joined],
            "left": [str(key) for key in report.left],
        }
        with open(folder / "rounds.jsonl", "a") as file:
            file.write(json.dumps(lines) + "\n")

    strategy = UnbiasedSampling(
        FedAvg(min_available_nodes=2, fraction_evaluate=0.0),
        policy=config["policy"],
        budget=config["budget"],
        journal=folder / "run.kvib",
        offline=EstimateAvailability(leave_after=config["gone-after"]),
        on_round=write,
    )
    strategy.start(
        grid,
        ArrayRecord({"slope": Array(np.zeros(3, np.float32))}),
        num_rounds=config["rounds"],
        timeout=90,
        evaluate_fn=lambda server_round, arrays: keep(folder, arrays),
    )


def keep(folder, arrays):
    """The model of every round, for the losses."""
    with open(folder / "models.jsonl", "a") as file:
        file.write(json.dumps(arrays["slope"].numpy().tolist()) + "\n")
