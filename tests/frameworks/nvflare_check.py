"""NVFlare's simulator with kvib's controller. Run by tests/test_frameworks.py."""

import sys
from pathlib import Path

import numpy as np
from nvflare.client.config import ExchangeFormat
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

import kvib
from kvib.integrations.nvflare import UnbiasedFedAvg

folder, procedure = Path(sys.argv[1]), sys.argv[2]
T, N = 6, 4
K = 1 if procedure == "independent" else 2  # one on average, so that some rounds have none
job = FedJob(name="kvib", min_clients=N)
job.to_server(
    UnbiasedFedAvg(
        num_clients=K,
        num_rounds=T,
        model={"w": [0.0, 0.0]},
        persistor_id="",
        save_filename=str(folder / "model.fobs"),
        weights={f"site-{i}": float(i) for i in range(1, N + 1)},
        procedure=procedure,
        journal=str(folder / "run.kvib"),
        seed=3,
    )
)
runner = ScriptRunner(
    script=str(Path(__file__).with_name("nvflare_site.py")),
    framework=FrameworkType.RAW,
    server_expected_format=ExchangeFormat.NUMPY,
)
job.to_clients(runner)
job.simulator_run(str(folder / "work"), n_clients=N, threads=2)

# each site moves the model by its number, so that the end is Σ coefficient·number over all rounds
history = kvib.journal.read(folder / "run.kvib")
moved = [logged.cohort.coefficients @ (logged.cohort.ids + 1.0) for logged in history.rounds()]
assert len(moved) == T, f"{len(moved)} rounds"
assert procedure != "independent" or 0 in history.table().size, "no empty round, try another seed"
assert history.table().answered.sum() == history.table().size.sum(), "somebody did not answer"
from nvflare.fuel.utils import fobs  # noqa: E402

saved = fobs.loadf(str(folder / "model.fobs"))
saved = getattr(saved, "params", saved)
assert np.allclose(saved["w"], -np.sum(moved)), (saved, moved)
(folder / "said").write_text("agrees")
