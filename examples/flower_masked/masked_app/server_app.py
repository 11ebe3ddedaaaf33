"""The ServerApp, which sees masked updates, their sum, and the norms that clients report."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower import Hidden, UnbiasedSampling

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    strategy = UnbiasedSampling(
        FedAvg(min_available_nodes=int(config["clients"]), fraction_evaluate=0.0),
        budget=float(config["budget"]),
        updates=Hidden(),
    )

    def distance(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """The distance to the slope that all clients have in common."""
        return MetricRecord({"distance": float(np.linalg.norm(arrays["w"].numpy() - 1))})

    strategy.start(
        grid,
        ArrayRecord({"w": Array(np.zeros(5))}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=distance,
    )
