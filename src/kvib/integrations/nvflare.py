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
from kvib.clients.rates import EstimatedRate
from kvib.estimators.guard import Guard
from kvib.integrations.kit import (
    Answer,
    BadReplyError,
    Combination,
    EstimateAvailability,
    Fleet,
    FleetOptions,
    Guards,
    Introduction,
    Model,
    Renormalise,
    Round,
    Visible,
    Watch,
    averaged,
    default_guard,
    running_statistics,
)
from kvib.types import FloatArray, Key

REFUSED = {
    "aggregator": "an aggregator of your own would see updates without λ/p; leave it out",
    "aggregation_weights": "λ are given as weights={site: …}, before a site trains",
    "exclude_vars": "a variable is a parameter or a buffer here; let sites not send it",
    "enable_tensor_disk_offload": "updates are summed as they come, so none stays in memory",
}
"""The options of `FedAvg` that cannot be combined with kvib, and the reasons."""


class UnbiasedFedAvg(FedAvg):  # type: ignore[misc]
    """Replaces `FedAvg`, and steps to x − Σ λ_i/(q_i p_i)·(x − x_i) instead of a mean.

    Sites are known by their names, and may come and go. Job configurations are text, so policy and
    procedure are given by name. Running statistics of BatchNorm and integer arrays are averaged.

    Args:
        args: The positional arguments of `FedAvg`.
        weights: The weights λ by site, in any unit. Sites that are not named take no part. None
            means that all sites are equal.
        policy: The name of the policy, with arguments if needed: "Forecast", "KVib(rounds=500)".
        procedure: The name of the procedure. None means the policy's own.
        seed: The seed that decides every draw.
        journal: The path of a file that keeps the sampler, so that a restart continues it.
        renormalise: Whether the sites online are the whole objective of a round. By default sites
            that are offline stay in the objective, and their availability is estimated.
        guard: Whether `kvib.Guard()` bounds what one site can add to a step, at the price of a bias
            when it fires. None means with Forecast only.
        answer_within: The seconds after which a site counts as silent. 0 means to wait forever.
        kwargs: The keyword arguments of `FedAvg`. `num_clients` is the budget. A site that fails
            does not end the job (`ignore_result_error=True`).
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
        """Run the rounds as FedAvg does, with kvib's sampler and aggregator."""
        policy = names.policy(self.policy)
        guards: dict[bool | None, Guards] = {None: default_guard, True: Guard(), False: None}
        options = FleetOptions(
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
        self.fleet, self.watch = Fleet(options), Watch(self._say)
        self.aggregator = Estimate()
        try:
            super().run()
        finally:
            self.fleet.close()

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Draw a cohort, and return the names of its sites. Empty if no site was drawn."""
        online = {client.name for client in self.engine.get_clients()}
        strangers = self.fleet.strangers(online)
        self.fleet.meet(Introduction(name, str(name)) for name in strangers)
        self.aggregator.round = round = self.fleet.draw(online)
        self.watch.population(self.fleet.standing, self.fleet.news())
        drawn = [] if round is None else [str(key) for key in round.keys]
        self.info(f"kvib drew {drawn} of {len(online)} sites")
        return [name for name in drawn if name in online]

    def send_model(self, *, targets: list[str], data: FLModel, **options: Any) -> None:
        """Send the model, unless no site was drawn: NVFlare takes an empty list for all sites."""
        self.aggregator.begin(data.params)
        if targets:
            super().send_model(targets=targets, data=data, timeout=self.answer_within, **options)

    def _get_aggregated_result(self) -> FLModel:
        """The new model, after the log has reported which sites did not answer."""
        result = super()._get_aggregated_result()
        round = self.aggregator.round
        if round is None:
            self.watch.answers(0, {})
        else:
            self.watch.answers(len(round), round.unanswered)
        return result

    def _say(self, level: int, line: str) -> None:
        """Write a line to the log of the job."""
        (self.warning if level >= WARNING else self.info)(f"kvib: {line}")


class Estimate(ModelAggregator):  # type: ignore[misc]
    """Sums coefficient·(x − x_i) while results arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.round: Round | None = None
        """The round whose results arrive. None where no site was online."""
        self._lock = threading.Lock()
        self._combination: Combination | None = None
        self._measured: list[tuple[dict[str, Any], float]] = []
        """The metrics of the sites that answered, and their coefficients."""

    def reset_stats(self) -> None:
        """Do nothing: `begin` clears what earlier rounds left."""

    def begin(self, params: dict[str, Any]) -> None:
        """Begin a round with these parameters of the model."""
        arrays = {name: np.asarray(value) for name, value in params.items()}
        buffers = {name for name, array in arrays.items() if running_statistics(name, array)}
        self._model = Model(arrays, buffers)
        self._combination, self._measured = None, []
        if self.round is not None:  # held=False: NVFlare does not keep accepted results
            self._combination = Visible().begin(self.round, self._model, held=False)

    def accept_model(self, model: FLModel) -> None:
        """Add the result of one site. A result that is not an update counts as silence."""
        name = str((model.meta or {}).get("client_name", ""))
        with self._lock:
            round, combination = self.round, self._combination
            position = None if round is None else round.answers(name)
            if round is None or combination is None or position is None:
                return
            try:
                combination.add(Answer(position, self._full(model)))
            except BadReplyError as error:
                round.refuse(position, str(error))
                return
            factor = float(round.cohort.coefficients[position])
            self._measured.append((model.metrics or {}, factor))

    def _full(self, model: FLModel) -> dict[str, Any]:
        """The arrays x_i, also where the site sent the difference x_i − x."""
        theirs = self._model.read(model.params or {})
        if model.params_type != ParamsType.DIFF:
            return theirs
        ours = self._model.arrays
        return {name: ours[name].astype(np.float64) + array for name, array in theirs.items()}

    def aggregate_model(self) -> FLModel:
        """Return x − d, with metrics averaged by coefficient, after the sampler has learned."""
        d, buffers = 0.0, dict[str, FloatArray]()
        if self.round is not None and self._combination is not None:
            self.round.refuse_silent()
            d, buffers, *_ = self._combination.finish()
        moved, metrics = self._model.moved(d, buffers), averaged(self._measured)
        return FLModel(params=moved, params_type=ParamsType.FULL, metrics=metrics or None)
