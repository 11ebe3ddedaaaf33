"""NVFlare: its FedAvg controller with unbiased adaptive sampling."""

import os
import threading
from collections.abc import Mapping
from logging import WARNING
from typing import Any, cast

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.workflows.fedavg import FedAvg

from kvib import names
from kvib.cohort import Cohort, FloatArray
from kvib.guard import Guard
from kvib.integrations.arrays import BadReplyError, Model, running_statistics
from kvib.integrations.combining import Answer, Combination, Visible, averaged
from kvib.integrations.fleet import (
    EstimateAvailability,
    Fleet,
    Guards,
    Introduction,
    Plan,
    Renormalise,
    usual_guard,
)
from kvib.integrations.watch import Refusal, Silence, Watch
from kvib.population import Key
from kvib.rates import EstimatedRate

REFUSED = {
    "aggregator": "an aggregator of your own would see updates without λ/p; leave it out",
    "aggregation_weights": "λ are given as weights={site: …}, before anybody trains",
    "exclude_vars": "a variable is a parameter or a buffer here; let sites not send it",
    "enable_tensor_disk_offload": "updates are summed as they come, so none stays in memory",
}
"""What `FedAvg` takes and cannot be had here."""


class UnbiasedFedAvg(FedAvg):  # type: ignore[misc]
    """In place of `FedAvg`; x − Σ λ_i/(q_i p_i)·(x − x_i) instead of a mean.

    Sites are known by their names, and come and go. Job configurations are text, so policy and
    procedure are given by name. Running statistics of BatchNorm and integers are averaged.

    Args:
        args: of `FedAvg`.
        weights: λ by site, in any unit; others take no part. None: all equal.
        policy: as its repr says it: "Forecast", "KVib(rounds=500)".
        procedure: by name; None: the policy's own.
        seed: decides every draw.
        journal: path of a file in which the sampler lives, to be continued after a restart.
        renormalise: let the objective of a round be that of the sites online; by default those
            offline stay in it, and availability is estimated.
        guard: bound what one site can do in a round (`kvib.Guard()`), at the price of a bias when
            it fires; by default with Forecast only.
        answer_within: seconds after which a site has not answered; 0: wait forever.
        kwargs: of `FedAvg`; `num_clients` is the budget. A site that fails does not end the job
            (`ignore_result_error=True`).
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
        guard: bool | None = None,
        answer_within: int = 0,
        **kwargs: Any,
    ) -> None:
        for name, reason in REFUSED.items():
            if kwargs.get(name):
                raise ValueError(f"{name} cannot be had with kvib: {reason}")
        super().__init__(*args, **{"ignore_result_error": True, **kwargs})
        self.weights, self.policy, self.procedure, self.seed = weights, policy, procedure, seed
        self.journal, self.renormalise, self.answer_within = journal, renormalise, answer_within
        self.guard = guard

    def run(self) -> None:
        """As FedAvg's, with our sampler and our aggregator."""
        policy = names.policy(self.policy)
        guards: dict[bool | None, Guards] = {None: usual_guard, True: Guard(), False: None}
        plan = Plan(
            policy=policy,
            budget=lambda clients, round: self.num_clients,
            procedure=None if self.procedure is None else names.PROCEDURES[self.procedure],
            seed=self.seed,
            journal=self.journal,
            weights=cast(Mapping[Key, float] | None, self.weights),
            offline=Renormalise() if self.renormalise else EstimateAvailability(),
            response=EstimatedRate(),
            guard=guards[self.guard],
        )
        self.fleet, self.watch = Fleet(plan), Watch(self._say)
        self.aggregator = Estimate(self.fleet)
        try:
            super().run()
        finally:
            self.fleet.close()

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Names of the drawn; empty where nobody was."""
        online = {client.name for client in self.engine.get_clients()}
        strangers = self.fleet.strangers(online)
        self.fleet.meet(Introduction(name, str(name)) for name in strangers)
        cohort = self.fleet.draw(online)
        self.watch.population(self.fleet.standing, self.fleet.news())
        self.aggregator.cohort = cohort
        drawn = [] if cohort is None else [str(key) for key in self.fleet.names(cohort)]
        self.info(f"kvib drew {drawn} of {len(online)} sites")
        return [name for name in drawn if name in online]

    def send_model(self, *, targets: list[str], data: FLModel, **options: Any) -> None:
        """Never to an empty list, which NVFlare takes for everybody."""
        self.aggregator.begin(data.params)
        if targets:
            super().send_model(targets=targets, data=data, timeout=self.answer_within, **options)

    def _get_aggregated_result(self) -> FLModel:
        result = super()._get_aggregated_result()
        cohort = self.aggregator.cohort
        self.watch.answers(0 if cohort is None else len(cohort), self.aggregator.unheard)
        return result

    def _say(self, level: int, line: str) -> None:
        (self.warning if level >= WARNING else self.info)(f"kvib: {line}")


class Estimate(ModelAggregator):  # type: ignore[misc]
    """Sums coefficient·(x − x_i) as results come."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        self.cohort: Cohort | None = None
        self.unheard: dict[Key, Refusal] = {}
        """Sites of the round that were not heard, and why."""
        self._lock = threading.Lock()
        self._combination: Combination | None = None
        self._silent: dict[Key, int] = {}
        """Positions of those not heard of yet, by name."""
        self._measured: list[tuple[dict[str, Any], float]] = []
        """Metrics of those heard, and their coefficients."""

    def reset_stats(self) -> None:
        """Nothing is left from earlier rounds."""

    def begin(self, params: dict[str, Any]) -> None:
        """A round from this model."""
        arrays = {name: np.asarray(value) for name, value in params.items()}
        buffers = {name for name, array in arrays.items() if running_statistics(name, array)}
        self._model = Model(arrays, buffers)
        self._combination, self._silent, self._measured = None, {}, []
        self.unheard.clear()
        self.fleet.refused = {}
        if self.cohort is not None and self.fleet.sampler is not None:
            sampler, held = self.fleet.sampler, False  # NVFlare lets go of what was accepted
            self._combination = Visible().begin(sampler, self.cohort, self._model, held)
            self._silent = {key: at for at, key in enumerate(self.fleet.names(self.cohort))}

    def accept_model(self, model: FLModel) -> None:
        """One site's result; one that is of another shape or no number counts as no answer."""
        name = str((model.meta or {}).get("client_name", ""))
        with self._lock:
            position = self._silent.pop(name, None)
            if position is None or self._combination is None or self.cohort is None:
                return
            try:
                self._combination.add(Answer(position, self._full(model)))
            except BadReplyError as error:
                self._refuse(name, Silence.REFUSED, str(error))
                return
            factor = float(self.cohort.coefficients[position])
            self._measured.append((model.metrics or {}, factor))

    def _full(self, model: FLModel) -> dict[str, Any]:
        """x_i, also where x_i − x was sent."""
        theirs = self._model.read(model.params or {})
        if model.params_type != ParamsType.DIFF:
            return theirs
        ours = self._model.arrays
        return {name: ours[name].astype(np.float64) + array for name, array in theirs.items()}

    def _refuse(self, site: Key, kind: Silence, why: str) -> None:
        self.unheard[site], self.fleet.refused[site] = Refusal(kind, why), why

    def aggregate_model(self) -> FLModel:
        """x − d, and metrics averaged by coefficient; the sampler has learned then."""
        for site in self._silent:
            self._refuse(site, Silence.LATE, "no answer")
        d, buffers = 0.0, dict[str, FloatArray]()
        if self._combination is not None:
            d, buffers, *_ = self._combination.finish()
        moved, metrics = self._model.moved(d, buffers), averaged(self._measured)
        return FLModel(params=moved, params_type=ParamsType.FULL, metrics=metrics or None)
