"""The ServerApp, which runs beside the SuperLink. A restarted run continues the last one."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower import UnbiasedSampling
from kvib_app.task import new_model, test_loss

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, or those that an earlier run has left."""
    config = context.run_config
    clients, rounds = int(config["clients"]), int(config["num-server-rounds"])
    folder = Path(str(config["folder"])) if config["folder"] else None
    model, done = new_model(), 0
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "model.pt").exists():
            done, weights = torch.load(folder / "model.pt", weights_only=True)
            model.load_state_dict(weights)

    strategy = UnbiasedSampling(
        FedAvg(min_available_nodes=clients, fraction_evaluate=0.0),
        budget=float(config["budget"]),
        journal=None if folder is None else folder / "run.kvib",
    )

    def after_round(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Save the model and measure its loss."""
        weights = arrays.to_torch_state_dict()
        if folder is not None:  # write to another file first: a crash leaves one whole file
            torch.save((done + server_round, weights), folder / "model.new")
            (folder / "model.new").replace(folder / "model.pt")
        model.load_state_dict(weights)
        return MetricRecord({"round": done + server_round, "loss": test_loss(model, clients)})

    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=max(rounds - done, 0),
        evaluate_fn=after_round,
    )
