"""The server's side: a strategy around another one."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from kvib import names
from kvib.clients.population import listed
from kvib.clients.rates import EstimatedRate
from kvib.cohort import Cohort
from kvib.integrations.flower.arguments import Buffers, by_key, known_buffers, known_updates
from kvib.integrations.flower.gathering import gathered
from kvib.integrations.flower.inner import message_of, step_of
from kvib.integrations.flower.metrics import averages, examples, measured
from kvib.integrations.flower.records import to_arrays
from kvib.integrations.flower.refusals import averaging, refuse_noise_around
from kvib.integrations.flower.report import RoundReport, reported
from kvib.integrations.flower.rounds import Sent, sorted_replies
from kvib.integrations.flower.sending import Sender
from kvib.integrations.kit import (
    Budgets,
    EstimateAvailability,
    Fleet,
    FleetOptions,
    Guards,
    Hidden,
    Model,
    News,
    Offline,
    Outcome,
    Visible,
    Watch,
    budget_of,
    default_guard,
    running_statistics,
)
from kvib.journal.sampler import AnySampler
from kvib.policies import Forecast, Policy
from kvib.procedures import Procedure
from kvib.types import Key

NAMING = (
    "Start SuperNodes with --node-config 'client-id=\"…\"', and call introduce(app) in the "
    "ClientApp"
)
"""How a client gets a name of its own."""
SIZING = "call introduce(app, size=…) in the ClientApp"
"""How a client reports its size."""


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
        policy: whom to prefer, or its name, "KVib(rounds=500)"; by default `kvib.Forecast()`.
        budget: clients per round: a number, a text such as "20" or "10%", or a function of the
            round. None: what the wrapped strategy would draw, the larger of `fraction_train` of
            all clients and `min_train_nodes`.
        procedure: how to draw, or its name; by default the policy's own.
        seed: decides every draw, given the same clients and answers.
        journal: path of a file in which the sampler lives. A ServerApp that finds one continues.
        switch: whether a journal of another policy goes on with this one, which learns from the
            rounds in it. By default such a journal is refused.
        weights: λ by client key, in any unit; clients that are not named take no part. None: the
            size that clients report (`introduce`), or equal where they report none.
        max_weight: the largest size that is believed; a client that reports more counts as this.
        offline: `EstimateAvailability()`, or `Renormalise()` over who is online.
        response: rate of answers: `kvib.EstimatedRate()`, a number, or one by client key.
        guard: bounds what one client can do in a round, at the price of a bias when it fires;
            None: nothing does. By default `kvib.Guard()` with Forecast, None with other policies.
        updates: `Visible()`, or `Hidden()` where only sums can be seen.
        buffers: which arrays (by name and value) are averaged instead of learned.
        query_timeout: seconds to wait for new nodes to introduce themselves.
        quorum: share of the drawn clients that must answer. A round with fewer is given up: the
            model stays, and the sampler learns nothing. 0: every round counts.
        deadline: seconds for the answers of a round, in place of `start(timeout=…)`. A client that
            is later counts as silent.
        patience: rounds in a row in which every reply is refused before the run ends with an error.
            None: it never does. After this many rounds without any reply the log warns.
        on_round: called with the `RoundReport` of every round, which `last` holds too.
        cost: what drawing a client takes from the budget, by client key; the budget is in its units
            then, and clients that are not named take no part.
        over_select: whether the budget is the expected number of answers, not of clients asked.
        cool_down: rounds that a drawn client waits before it can be drawn again.
        variables: what is known of every client, by client key, for procedures that balance on it
            and policies that forecast from it. The population is fixed then.
    """

    def __init__(
        self,
        strategy: Strategy,
        policy: Policy[Any] | str | None = None,
        *,
        budget: Budgets = None,
        procedure: Procedure | str | None = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        switch: bool = False,
        weights: Mapping[Key, float] | None = None,
        max_weight: float | None = None,
        offline: Offline = EstimateAvailability(),  # noqa: B008 (frozen)
        response: float | EstimatedRate | Mapping[Key, float] = EstimatedRate(),  # noqa: B008
        guard: Guards = default_guard,
        updates: Visible | Hidden = Visible(),  # noqa: B008
        buffers: Buffers = running_statistics,
        query_timeout: float = 300.0,
        quorum: float = 0.0,
        deadline: float | None = None,
        patience: int | None = 10,
        on_round: Callable[[RoundReport], None] | None = None,
        cost: Mapping[Key, float] | None = None,
        over_select: bool = False,
        cool_down: int = 0,
        variables: Mapping[Key, Sequence[float]] | None = None,
    ) -> None:
        if isinstance(strategy, UnbiasedSampling):
            name = type(strategy).__name__
            raise ValueError(f"{name} samples without bias already; wrap the strategy inside it")
        if cost is not None and budget is None:
            raise ValueError("with cost=… the budget is in its units; give budget=… too")
        self.strategy = averaging(strategy)
        self._budget = budget_of(budget, self._strategy_budget)
        self.fleet = Fleet(
            FleetOptions(
                policy=Forecast() if policy is None else names.as_policy(policy),
                budget=self._budget,
                procedure=names.as_procedure(procedure),
                seed=seed,
                journal=journal,
                switch=switch,
                weights=weights,
                max_weight=max_weight,
                offline=offline,
                response=response,
                guard=guard,
                cost=cost,
                over_select=over_select,
                cool_down=cool_down,
                variables=variables,
            )
        )
        self.updates, self._is_buffer = known_updates(updates), known_buffers(buffers)
        self._on_round = on_round
        self._sender = Sender(self.fleet, self.strategy, updates, query_timeout, deadline)
        self._watch = Watch(_say, quorum, patience, NAMING)
        self.cohort: Cohort | None = None
        """The cohort of the last round."""
        self.last: RoundReport | None = None
        """What the last round came to."""
        self._sent: Sent | None = None
        self._news = News([], [], [], [])
        self._grid: Grid | None = None

    @property
    def sampler(self) -> AnySampler | None:
        """None before the first client was met."""
        return self.fleet.sampler

    @property
    def refused(self) -> dict[Key, str]:
        """Why clients of the last round were not heard, by key."""
        return self.fleet.refused

    def budget(self, clients: int, round: int = 0) -> float:
        """The budget of a round among this many clients."""
        return self._budget(clients, round)

    def _strategy_budget(self, clients: float) -> float:
        """What the wrapped strategy would draw from this many clients."""
        share = int(clients * self.strategy.fraction_train)
        return max(share, self.strategy.min_train_nodes, 1)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        *args: Any,
        **kwargs: Any,
    ) -> Result:
        """Run the rounds, as `Strategy.start` does; `deadline` takes the place of `timeout`."""
        seconds = self._sender.begin(timeout)
        return super().start(grid, initial_arrays, num_rounds, seconds, *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw a cohort, and send it what the wrapped strategy would send.

        Every round waits until `min_available_nodes` are online, as stock Flower does.
        """
        refuse_noise_around(inspect.currentframe())
        self._sent, self._grid = None, grid
        template = message_of(self.strategy, server_round, arrays, config, grid)
        if template is None:
            return []
        online = self._sender.online(grid)
        round = self.fleet.draw(online)
        if round is None:
            log(INFO, "kvib: no client is online; the model stays")
            return []
        self._news = self.fleet.news()
        self._watch.population(self.fleet.standing, self._news)
        model = self._model(next(iter(template.content.array_records.values())))
        self._sent = Sent(round, model, template, len(online))
        self.cohort = round.cohort
        log(INFO, "kvib: drew %d clients, %d nodes online", len(round), len(online))
        return self._sender.messages(self._sent, online)

    def _model(self, sent: ArrayRecord) -> Model:
        arrays = to_arrays(sent)
        return Model(arrays, {name for name, a in arrays.items() if self._is_buffer(name, a)})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Estimate the step of full participation, and let the wrapped strategy take it."""
        sent, self._sent = self._sent, None
        if sent is None or self._grid is None:
            return None, None
        replied = self._sender.reached(self._grid, sent, sorted_replies(sent, replies))
        came, round = gathered(self.updates, sent, replied), sent.round
        answered = list(came.said)
        self._watch.answers(len(round), round.unanswered)
        records = measured(came.said, round.cohort.coefficients.tolist())
        self.fleet.compare(examples(records, self.strategy.weighted_by_key), SIZING)
        # a user's function may raise here: the sampler has not learned yet
        means = averages(self.strategy, records)
        outcome = None
        if self._watch.is_quorum(len(round), len(answered)):
            outcome = came.combination.finish()
        else:
            round.give_up()
        came_of_it = (outcome, self.fleet.standing, self._news)
        report = self.last = reported(sent, server_round, answered, *came_of_it)
        self._hand_on(report)
        metrics = {**means, **report.metrics()}
        if outcome is None:
            return None, MetricRecord(metrics)
        return self._stepped(sent, server_round, came.model, outcome, metrics)

    def _stepped(
        self,
        sent: Sent,
        server_round: int,
        model: Model,
        outcome: Outcome,
        metrics: Mapping[str, Any],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The step of the wrapped strategy, on the arrays that clients sent."""
        moved = {**sent.model.arrays, **model.moved(outcome.d, outcome.buffers)}
        arrays, said = step_of(self.strategy, server_round, sent.template, moved, metrics)
        if arrays is not None:  # an optimiser has no business with counters and what was not sent
            ours = next(iter(sent.template.content.array_records.values()))
            kept = sent.model.arrays.keys() - model.arrays.keys()
            arrays.update({name: Array(moved[name]) for name in model.buffers})
            arrays.update({name: ours[name] for name in kept})
        return arrays, said

    def _hand_on(self, report: RoundReport) -> None:
        """Call the user's function; an error in it does not end the run."""
        if self._on_round is None:
            return
        try:
            self._on_round(report)
        except Exception as error:  # a dashboard must not stop a training
            log(WARNING, "kvib: on_round failed in round %d: %r", report.round, error)

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
        """Log what is wrapped, and by what."""
        options = self.fleet.options
        procedure = options.procedure or options.policy.procedure
        log(INFO, "\t├──> kvib: %r, %r, journal %s", options.policy, procedure, options.journal)
        self.strategy.summary()

    def leave(self, keys: Key | Iterable[Key]) -> None:
        """One client or several go, with their share of λ, until they introduce themselves anew."""
        self.fleet.leave(listed(keys))

    def reweigh(self, weights: Mapping[Key, float]) -> None:
        """Weights of clients change, in the units of the others, until the server restarts."""
        self.fleet.reweigh(by_key(weights))

    def switch(self, policy: Policy[Any] | str, procedure: Procedure | str | None = None) -> None:
        """Draw with another policy from the next round on; it learns from the journal's rounds."""
        self.fleet.switch(names.as_policy(policy), names.as_procedure(procedure))

    def close(self) -> None:
        """Let go of the journal, for another strategy in the same process."""
        self.fleet.close()


def _say(level: int, line: str) -> None:
    log(level, "kvib: %s", line)
