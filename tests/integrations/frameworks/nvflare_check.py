"""NVFlare's simulator with kvib's controller. Run by tests/integrations/test_frameworks.py."""

import sys
from pathlib import Path

import numpy as np
import pytest
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.client.config import ExchangeFormat
from nvflare.fuel.utils import fobs
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

import kvib
from kvib.integrations.kit import EstimateAvailability, Fleet, FleetOptions, Introduction
from kvib.integrations.nvflare import Estimate, UnbiasedFedAvg

# without a job: what is refused, and what the aggregator makes of what comes
for option in (
    {"aggregation_weights": {"site-1": 5.0}},
    {"exclude_vars": "bn.*"},
    {"enable_tensor_disk_offload": True},
):
    with pytest.raises(ValueError, match="cannot be had with kvib"):
        UnbiasedFedAvg(num_clients=2, num_rounds=1, **option)

sites = [f"s{i}" for i in range(4)]
options = FleetOptions(
    policy=kvib.Uniform(),
    budget=lambda most, round: 4,
    procedure=kvib.independent,
    seed=0,
    journal=None,
    weights=None,
    offline=EstimateAvailability(),
    response=kvib.EstimatedRate(),
    guard=None,
)
fleet = Fleet(options)
fleet.meet(Introduction(name, name) for name in sites)
estimate = Estimate()
estimate.round = fleet.draw(sites)
estimate.begin({"w": np.ones(2, np.float32), "n": np.array(10), "bn.running_var": np.ones(2)})
usual = {"w": np.full(2, 0.5), "n": np.array(21), "bn.running_var": np.full(2, 0.2)}
less = {"w": np.full(2, -0.25), "n": np.array(10), "bn.running_var": np.full(2, -0.4)}
for name, kind, params in (
    ("s2", ParamsType.FULL, usual),  # in any order
    ("s0", ParamsType.DIFF, less),
    ("s1", ParamsType.FULL, {**usual, "w": np.full(2, 1e100)}),
    ("s3", ParamsType.FULL, {"w": np.ones(2)}),
    ("s0", ParamsType.FULL, usual),  # again
    ("s9", ParamsType.FULL, usual),  # not asked
):
    model = FLModel(params=params, params_type=kind, metrics={"loss": 3.0, "note": "long"})
    model.meta = {"client_name": name}
    estimate.accept_model(model)
result = estimate.aggregate_model()
assert np.allclose(result.params["w"], 1 - (0.5 + 0.25) / 4), result.params
assert np.allclose(result.params["bn.running_var"], 0.4), result.params
assert result.params["n"] == 20, "rounded: 20.5 to even"
assert result.params["w"].dtype == np.float32
assert result.metrics == {"loss": 3.0}, result.metrics
assert "it diverged" in fleet.refused["s1"], fleet.refused
assert "is not in both" in fleet.refused["s3"], fleet.refused

# a job: with a site that fails and rounds that are empty, or with a condition to stop
folder, procedure, failing = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
T, N = 6, 4
K = 1 if failing else 2  # one on average, so that some rounds have none
stopping = {} if failing else {"stop_cond": "round >= 4"}
job = FedJob(name="kvib", min_clients=N)
job.to_server(
    UnbiasedFedAvg(
        num_clients=K,
        num_rounds=T,
        model={"w": [0.0, 0.0], "bn.running_var": [1.0, 1.0]},
        persistor_id="",
        save_filename=str(folder / "model.fobs"),
        weights={f"site-{i}": float(i) for i in range(1, N + 1)},
        procedure=procedure,
        journal=str(folder / "run.kvib"),
        seed=3,
        guard=False if failing else None,
        answer_within=20 if failing else 0,
        **stopping,
    )
)
runner = ScriptRunner(
    script=str(Path(__file__).with_name("nvflare_site.py")),
    script_args=" ".join(failing),
    framework=FrameworkType.RAW,
    server_expected_format=ExchangeFormat.NUMPY,
)
job.to_clients(runner)
job.simulator_run(str(folder / "work"), n_clients=N, threads=2)

# each site moves the model by its number, so that the end is Σ coefficient·number over all rounds
history = kvib.journal.read(folder / "run.kvib")
moved = [
    logged.cohort.coefficients @ np.where(np.isnan(logged.norms), 0, logged.cohort.ids + 1.0)
    for logged in history.rounds()
]
rounds = 5 if stopping else T
assert len(moved) == rounds, f"{len(moved)} rounds"
assert not failing or 0 in history.table().size, "no empty round, try another seed"
silent = history.table().size.sum() - history.table().answered.sum()
assert silent > 0 if failing else silent == 0, f"{silent} did not answer"

saved = fobs.loadf(str(folder / "model.fobs"))
saved = getattr(saved, "params", saved)
assert np.allclose(saved["w"], -np.sum(moved)), (saved, moved)
assert np.allclose(saved["bn.running_var"], 0.1), saved  # averaged: it is no update
(folder / "said").write_text("agrees")
