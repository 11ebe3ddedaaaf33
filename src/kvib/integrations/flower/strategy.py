"""The server's side: a strategy around another one."""

import inspect
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from kvib.checks import checked_budget
from kvib.cohort import Cohort
from kvib.guard import Guard
from kvib.integrations.arrays import BadReplyError, Model, running_statistics
from kvib.integrations.combining import Answer, Hidden, Outcome, Visible, alike, averaged
from kvib.integrations.fleet import EstimateAvailability, Fleet, Offline, Plan, usual_guard
from kvib.integrations.flower.asking import ask
from kvib.integrations.flower.inner import message_of, step_of
from kvib.integrations.flower.records import Reply, received, to_arrays
from kvib.integrations.flower.refusals import averaging, refuse_noise_around
from kvib.integrations.subsets import agreed, must_agree
from kvib.policies import Forecast, Policy
from kvib.population import Key
from kvib.procedures import Procedure
from kvib.rates import EstimatedRate
from kvib.sampler import Sampler

LONGEST_PAUSE = 30
"""Seconds, while nodes are waited for."""


@dataclass
class _Round:
    """One round between `configure_train` and `aggregate_train`."""

    cohort: Cohort
    keys: list[Key]
    model: Model
    template: Message
    online: int
    sent: dict[int, Message] = field(default_factory=dict)
    """By position in the cohort."""


class UnbiasedSampling(Strategy):
    """Draws who trains, and makes of the replies the step of full participation, on average.

    Wraps any strategy that averages: FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedProx. That
    one still decides what clients are sent, optimises on the server, and evaluates; it is given
    one reply, x − Σ λ_i/(q_i p_i)·(x − x_i), instead of many.

    Examples:
        >>> from flwr.serverapp.strategy import FedAdam
        >>> strategy = UnbiasedSampling(FedAdam(fraction_train=0.1), journal="run.kvib")

    Args:
        strategy: what to wrap.
        policy: whom to prefer; by default `kvib.Forecast()`.
        budget: clients per round; None: what the wrapped strategy would draw, the larger of
            `fraction_train` of all clients and `min_train_nodes`.
        procedure: how to draw; by default the policy's own.
        seed: decides every draw, given the same clients and answers.
        journal: path of a file in which the sampler lives. A ServerApp that finds one continues.
        weights: λ by client key, in any unit; clients that are not named take no part. None: the
            size that clients tell (`introduce`), or equal where they tell none.
        offline: `EstimateAvailability()`, or `Renormalise()` over who is online.
        response: rate of answers: `kvib.EstimatedRate()`, a number, or one by client key.
        guard: bounds what one client can do in a round, at the price of a bias when it fires;
            None: nothing does. By default `kvib.Guard()` with Forecast, None with other policies.
        updates: `Visible()`, or `Hidden()` where only sums can be seen.
        buffers: which arrays (by name and value) are averaged instead of learned.
        query_timeout: seconds to wait for new nodes to introduce themselves.
    """

    def __init__(
        self,
        strategy: Strategy,
        policy: Policy[Any] | None = None,
        *,
        budget: float | None = None,
        procedure: Procedure | None = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        weights: Mapping[Key, float] | None = None,
        offline: Offline = EstimateAvailability(),  # noqa: B008 (frozen)
        response: float | EstimatedRate | Mapping[Key, float] = EstimatedRate(),  # noqa: B008
        guard: Guard | Callable[[Policy[Any]], Guard | None] | None = usual_guard,
        updates: Visible | Hidden = Visible(),  # noqa: B008
        buffers: Callable[[str, NDArray[Any]], bool] = running_statistics,
        query_timeout: float = 300.0,
    ) -> None:
        if isinstance(strategy, UnbiasedSampling):
            name = type(strategy).__name__
            raise ValueError(f"{name} samples without bias already; wrap the strategy inside it")
        self.strategy = averaging(strategy)
        self._budget = None if budget is None else checked_budget(budget, math.inf)
        chosen = Forecast() if policy is None else policy
        self.fleet = Fleet(
            Plan(
                policy=chosen,
                budget=self.budget,
                procedure=procedure,
                seed=seed,
                journal=journal,
                weights=weights,
                offline=offline,
                response=response,
                guard=guard(chosen) if callable(guard) else guard,
            )
        )
        self.updates, self._is_buffer, self._query_timeout = updates, buffers, query_timeout
        self.cohort: Cohort | None = None
        """Of the last round."""
        self._round: _Round | None = None
        self._begun = False

    @property
    def sampler(self) -> Sampler | None:
        """None before the first client was met."""
        return self.fleet.sampler

    @property
    def refused(self) -> dict[Key, str]:
        """Why clients of the last round were not heard, by key."""
        return self.fleet.refused

    def budget(self, clients: int) -> float:
        """How many of so many clients to draw."""
        if self._budget is not None:
            return self._budget
        share = int(clients * self.strategy.fraction_train)
        return max(share, self.strategy.min_train_nodes, 1)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw a cohort, and send it what the wrapped strategy would send."""
        refuse_noise_around(sys._getframe(1).f_locals.get("self"))
        self._round = None
        template = message_of(self.strategy, server_round, arrays, config, grid)
        if template is None:
            return []
        online = self._online(grid)
        cohort = self.fleet.draw(online)
        if cohort is None:
            log(INFO, "kvib: nobody has introduced itself yet; the model stays")
            return []
        round = self._round = _Round(
            cohort,
            self.fleet.names(cohort),
            self._model(next(iter(template.content.array_records.values()))),
            template,
            len(online),
        )
        for position, key in enumerate(round.keys):
            node = self.fleet.address(key)
            if isinstance(node, int) and node in online:
                round.sent[position] = self._addressed(round, position, node)
        self.cohort = cohort
        log(INFO, "kvib: drew %d clients, %d nodes online", len(cohort), len(online))
        return list(round.sent.values())

    def _model(self, sent: ArrayRecord) -> Model:
        arrays = to_arrays(sent)
        return Model(arrays, {name for name, a in arrays.items() if self._is_buffer(name, a)})

    def _addressed(self, round: _Round, position: int, node: int) -> Message:
        metadata, content = round.template.metadata, round.template.content
        if self.updates.tells:
            told = ConfigRecord(
                {
                    "coefficient": float(round.cohort.coefficients[position]),
                    "position": position,
                    "size": len(round.cohort),
                    "round": round.cohort.round,
                    "buffers": sorted(round.model.buffers),
                }
            )
            content = RecordDict({**content, "kvib": told})
        return Message(content, node, metadata.message_type, ttl=metadata.ttl)

    def _online(self, grid: Grid) -> set[int]:
        """Node ids, after all of them were asked who they are; the first time it waits for them."""
        wanted = max(self.strategy.min_available_nodes, self.strategy.min_train_nodes)
        pause = 1
        while len(online := set(grid.get_node_ids())) < wanted and not self._begun:
            way_out = "start more, or lower min_available_nodes and min_train_nodes"
            log(INFO, "kvib: waiting for nodes, %d of %d: %s", len(online), wanted, way_out)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        self._begun = True
        self.fleet.meet(ask(grid, self.fleet.strangers(online), self._query_timeout))
        return online

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Estimate the step of full participation, and let the wrapped strategy take it."""
        round, self._round = self._round, None
        if round is None or self.sampler is None:
            return None, None
        contents, refused = _sorted(round, replies)
        came = _opened(contents, refused)
        every = round.model.arrays.keys()
        names = agreed(every, (reply.arrays.keys() for reply in came.values()))
        model = round.model.only(names)
        combination = self.updates.begin(self.sampler, round.cohort, model)
        heard = {}
        for position, reply in came.items():
            try:
                must_agree(reply.arrays.keys(), names, every)
                combination.add(Answer(position, reply.arrays, reply.norm))
                heard[position] = reply.metrics
            except BadReplyError as error:
                refused[position] = str(error)
        self.fleet.refused = {round.keys[position]: why for position, why in refused.items()}
        for key, why in self.refused.items():
            log(INFO, "kvib: client %s was not heard: %s", key, why)
        log(INFO, "kvib: %d of %d clients were heard", len(heard), len(round.cohort))
        measured = self._measured(round, heard)  # may raise in a user's function: before we learn
        outcome = combination.finish()
        moved = {**round.model.arrays, **model.moved(outcome.d, outcome.buffers)}
        metrics = {**measured, **_of_the_draw(round, list(heard), outcome)}
        arrays, told = step_of(self.strategy, server_round, round.template, moved, metrics)
        if arrays is not None:  # an optimiser has no business with counters and what was not sent
            sent = next(iter(round.template.content.array_records.values()))
            arrays.update({name: Array(moved[name]) for name in model.buffers})
            arrays.update({name: sent[name] for name in every - names})
        return arrays, told

    def _measured(self, round: _Round, heard: dict[int, list[MetricRecord]]) -> Mapping[str, Any]:
        """By clients, averaged by coefficient in the way of the wrapped strategy."""
        factors, key = round.cohort.coefficients.tolist(), self.strategy.weighted_by_key
        told = [
            (dict(records[0]), factors[position])
            for position, records in heard.items()
            if len(records) == 1
        ]
        function = self.strategy.train_metrics_aggr_fn
        if told and function is not aggregate_metricrecords:
            names = alike([record for record, _ in told])
            contents = [
                RecordDict({"metrics": MetricRecord({**{n: r[n] for n in names}, key: weight})})
                for r, weight in told
            ]
            return function(contents, key)
        return {name: mean for name, mean in averaged(told).items() if name != key}

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the wrapped strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Of the wrapped strategy."""
        plan = self.fleet.plan
        procedure = plan.procedure or plan.policy.procedure
        log(INFO, "\t├──> kvib: %r, %r, journal %s", plan.policy, procedure, plan.journal)
        self.strategy.summary()

    def leave(self, keys: Iterable[Key]) -> None:
        """Clients go, with their share of the objective, until they introduce themselves anew."""
        self.fleet.leave(keys)

    def close(self) -> None:
        """Let go of the journal, for another strategy in the same process."""
        self.fleet.close()


def _sorted(
    round: _Round, replies: Iterable[Message]
) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """By position: what was sent, and why nothing was.

    A dead node's reply is from the SuperLink, so go by the message it replies to.
    """
    positions = {message.metadata.message_id: at for at, message in round.sent.items()}
    contents, refused = {}, {}
    for reply in replies:
        position = positions.pop(reply.metadata.reply_to_message_id, None)
        if position is None:
            continue  # late, or sent twice
        if reply.has_error():
            refused[position] = f"error {reply.error.code}: {reply.error.reason}"
        else:
            contents[position] = reply.content
    for position in positions.values():
        refused[position] = "no answer in time"
    for position in range(len(round.keys)):
        if position not in round.sent:
            refused[position] = "it is offline"
    return dict(sorted(contents.items())), refused


def _opened(contents: dict[int, RecordDict], refused: dict[int, str]) -> dict[int, Reply]:
    """Replies that could be a model, by position; why others could not be goes to `refused`."""
    came = {}
    for position, content in contents.items():
        try:
            came[position] = received(content)
        except BadReplyError as error:
            refused[position] = str(error)
    return came


def _of_the_draw(round: _Round, heard: list[int], outcome: Outcome) -> dict[str, int | float]:
    cohort = round.cohort
    return {
        "kvib-round": cohort.round,
        "kvib-cohort": len(cohort),
        "kvib-missing": len(cohort) - len(heard),
        "kvib-coefficients": float(cohort.coefficients[np.array(heard, np.int64)].sum()),
        "kvib-variance": outcome.variance,
        "kvib-cut": outcome.cut,
        "kvib-online": round.online,
    }


class KVibFedAvg(UnbiasedSampling):
    """FedAvg with unbiased adaptive sampling: takes FedAvg's arguments, and ours by keyword.

    Examples:
        >>> strategy = KVibFedAvg(fraction_train=0.1, min_available_nodes=10, journal="run.kvib")
    """

    def __init__(self, *fedavg: Any, **options: Any) -> None:
        ours = {name: options.pop(name) for name in _OURS & options.keys()}
        super().__init__(FedAvg(*fedavg, **options), **ours)


_OURS = set(inspect.signature(UnbiasedSampling).parameters) - {"strategy"}
