"""NVFlare: its FedAvg controller with unbiased adaptive sampling."""

import math
import os
import threading
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.workflows.fedavg import FedAvg

from kvib import names
from kvib.cohort import Cohort
from kvib.estimation import Estimation
from kvib.guard import Guard
from kvib.integrations.fleet import (
    EstimateAvailability,
    Fleet,
    Introduction,
    Key,
    Plan,
    Renormalise,
    only,
)
from kvib.rates import EstimatedRate


class UnbiasedFedAvg(FedAvg):  # type: ignore[misc]
    """In place of `FedAvg`; x − Σ λ_i/(q_i p_i)·(x − x_i) instead of a mean.

    Sites are known by their names, and come and go. Job configurations are text, so policy and
    procedure are given by name.

    Args:
        args: of `FedAvg`.
        weights: λ by site, in any unit; others take no part. None: all equal.
        policy: as its repr says it: "Forecast", "KVib(rounds=500)".
        procedure: by name; None: the policy's own.
        seed: decides every draw.
        journal: path of a file in which the sampler lives, to be continued after a restart.
        renormalise: let the objective of a round be that of the sites online; by default those
            offline stay in it, and availability is estimated.
        answer_within: seconds after which a site has not answered; 0: wait forever.
        kwargs: of `FedAvg`; `num_clients` is the budget.
    """

    def __init__(
        self,
        *args: Any,
        weights: dict[str, float] | None = None,
        policy: str = "Forecast",
        procedure: str | None = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        renormalise: bool = False,
        answer_within: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if kwargs.get("aggregator") is not None:
            raise ValueError(
                "an aggregator of your own would see updates without λ/p; leave it out"
            )
        self.weights, self.policy, self.procedure, self.seed = weights, policy, procedure, seed
        self.journal, self.renormalise, self.answer_within = journal, renormalise, answer_within

    def run(self) -> None:
        """As FedAvg's, with our sampler and our aggregator."""
        plan = Plan(
            policy=names.policy(self.policy),
            budget=lambda clients: self.num_clients,
            procedure=None if self.procedure is None else names.PROCEDURES[self.procedure],
            seed=self.seed,
            journal=self.journal,
            weights=cast(Mapping[Key, float] | None, self.weights),
            offline=Renormalise() if self.renormalise else EstimateAvailability(),
            response=EstimatedRate(),
            guard=Guard(),
        )
        self.fleet = Fleet(plan)
        self.aggregator = _Estimate(self.fleet)
        super().run()

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Names of the drawn; empty where nobody was."""
        online = {client.name for client in self.engine.get_clients()}
        strangers = self.fleet.strangers(sorted(online))
        self.fleet.meet(Introduction(name, str(name)) for name in strangers)
        cohort = self.fleet.draw(online)
        self.aggregator.cohort = cohort
        drawn = [] if cohort is None else [str(key) for key in self.fleet.names(cohort)]
        self.info(f"kvib drew {drawn} of {len(online)} sites")
        return [name for name in drawn if name in online]

    def send_model(self, *, targets: list[str], data: FLModel, **options: Any) -> None:
        """Never to an empty list, which NVFlare takes for everybody."""
        self.aggregator.begin(data.params)
        if targets:
            super().send_model(targets=targets, data=data, timeout=self.answer_within, **options)


class _Estimate(ModelAggregator):  # type: ignore[misc]
    """Sums coefficient·(x − x_i) as results come."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        self.cohort: Cohort | None = None
        self._lock = threading.Lock()
        self._estimation: Estimation | None = None

    def reset_stats(self) -> None:
        """Nothing is left from earlier rounds."""

    def begin(self, params: dict[str, Any]) -> None:
        """A round from this model."""
        self._model = {name: np.asarray(value) for name, value in params.items()}
        self._estimation = None
        if self.cohort is not None and self.fleet.sampler is not None:
            self._estimation = self.fleet.sampler.begin(self.cohort)

    def accept_model(self, model: FLModel) -> None:
        """One site's result; one that is of another shape or no number counts as no answer."""
        name = str((model.meta or {}).get("client_name", ""))
        row = self._update(model)
        with self._lock:
            if self._estimation is None or self.cohort is None or row is None:
                return
            keys = [str(key) for key in self.fleet.names(self.cohort)]
            if name in keys and math.isnan(self._estimation.norms[keys.index(name)]):
                self._estimation.add(only(self.cohort, keys.index(name)), row[None])

    def _update(self, model: FLModel) -> Any:
        """x − x_i as one row; None if it is no update of this model."""
        theirs = {name: np.asarray(value) for name, value in (model.params or {}).items()}
        if {n: v.shape for n, v in theirs.items()} != {n: v.shape for n, v in self._model.items()}:
            return None
        difference = model.params_type == ParamsType.DIFF
        parts = [
            (-theirs[name] if difference else x - theirs[name]).ravel().astype(np.float64)
            for name, x in self._model.items()
        ]
        row = np.concatenate(parts)
        return row if np.isfinite(np.linalg.norm(row)) else None

    def aggregate_model(self) -> FLModel:
        """x − d; the sampler has learned then."""
        d = np.zeros(()) if self._estimation is None else np.asarray(self._estimation.finish())
        size = sum(x.size for x in self._model.values())
        steps, at, moved = np.broadcast_to(d, (size,)), 0, {}
        for name, x in self._model.items():
            moved[name] = (x - steps[at : at + x.size].reshape(x.shape)).astype(x.dtype)
            at += x.size
        return FLModel(params=moved, params_type=ParamsType.FULL)
