# mypy: ignore-errors
"""Flower's simulation engine (Ray), stock FedAvg, a client that only trains."""

import sys
import time
from importlib.metadata import version

import torch
from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_work import final_loss, initial_model
from work import Stopwatch, read, write


class GivenCohorts(FedAvg):
    """Node i, in the order of the ids, is client i."""

    def configure_train(self, server_round, arrays, config, grid):
        t, nodes = server_round - 1, sorted(grid.get_node_ids())
        return [
            Message(
                content=RecordDict(
                    {
                        "arrays": arrays,
                        "config": ConfigRecord({"work": sys.argv[1], "round": t, "position": j}),
                    }
                ),
                message_type=MessageType.TRAIN,
                dst_node_id=nodes[client],
            )
            for j, client in enumerate(work.cohorts[t])
        ]

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"round {server_round}: {failed[0]}")
        result = super().aggregate_train(server_round, replies)
        watch.round_ended()
        return result


work = read(sys.argv[1])
watch, model, server, N = Stopwatch(work), initial_model(work), ServerApp(), len(work.sizes)


@server.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < N:
        time.sleep(0.1)
    strategy = GivenCohorts(fraction_evaluate=0.0)
    arrays = ArrayRecord(model.state_dict())
    result = strategy.start(grid, arrays, num_rounds=len(work.cohorts))
    model.load_state_dict(result.arrays.to_torch_state_dict())


resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
run_simulation(server, app, N, backend_config=resources)
note = f"torch {torch.__version__}, one Ray actor per core"
write("Flower simulation", version("flwr"), watch, final_loss(model, work), note)
