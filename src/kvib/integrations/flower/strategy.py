"""The server's side: a strategy that wraps another one."""

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
"""The way in which a client gets a name of its own, for the log."""
SIZING = "call introduce(app, size=…) in the ClientApp"
"""The way in which a client reports its size, for a warning."""


class UnbiasedSampling(Strategy):
    """Draws the clients that train, and makes the step of full participation, on average.

    It wraps any strategy that averages: FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedProx. The
    wrapped strategy still decides what clients are sent, optimises on the server, and evaluates. It
    is given one reply, x − Σ λ_i/(q_i p_i)·(x − x_i), instead of many.

    Args:
        strategy: The strategy to wrap.
        policy: The policy, which decides which clients are preferred, or its name, such as
            "KVib(rounds=500)". None means `kvib.Forecast()`.
        budget: The clients per round: a number, a text such as "20" or "10%", or a function of the
            round. None means the number that the wrapped strategy would draw, the larger of
            `fraction_train` of all clients and `min_train_nodes`.
        procedure: The procedure that draws, or its name. None means the policy's own.
        seed: The seed that decides every draw, given the same clients and answers.
        journal: The path of a file that keeps the sampler. A ServerApp that finds the file
            continues it. None keeps the sampler in memory only.
        switch: Whether a journal of another policy goes on with this one, which learns from the
            rounds in the file. By default a journal of another policy is refused.
        weights: The weights λ by client key, in any unit. Clients that are not named take no part.
            None means the sizes that clients report (`introduce`), or equal weights where they
            report none.
        max_weight: The largest size that is believed. A client that reports more counts as this.
        offline: The meaning of offline clients: `EstimateAvailability()` keeps them in the
            objective, and `Renormalise()` makes the clients online the whole objective.
        response: The rate of answers: `kvib.EstimatedRate()`, a number, or one number by client
            key.
        guard: The bound on what one client can add to a step, at the price of a bias when it fires.
            None means no bound. By default it is `kvib.Guard()` with Forecast, and None with other
            policies.
        updates: The way in which the server sees updates: `Visible()`, or `Hidden()` where it sees
            only their sum.
        buffers: The function of an array's name and value that returns whether the array is
            averaged instead of learned.
        query_timeout: The seconds to wait for new nodes to introduce themselves.
        quorum: The share of the drawn clients that must answer. A round with fewer answers is given
            up: the model stays, and the sampler learns nothing. With 0 every round counts.
        deadline: The seconds for the answers of a round, in place of `start(timeout=…)`. A client
            that is later counts as silent.
        patience: The number of rounds in a row in which every reply is refused before the run ends
            with `NothingUsableError`. None means that it never ends so. After this many rounds
            without any reply the log warns.
        on_round: A function that is called with the `RoundReport` of every round.
        cost: The cost of drawing each client, by client key. The budget is in its units then, and
            clients that are not named take no part.
        over_select: Whether the budget is the expected number of answers instead of drawn clients.
        cool_down: The number of rounds that a drawn client waits before it can be drawn again.
        variables: The auxiliary variables of every client, by client key, for procedures that
            balance on them and policies that forecast from them. The population is fixed then.

    Examples:
        >>> from flwr.serverapp.strategy import FedAdam
        >>> from kvib.integrations.flower import UnbiasedSampling
        >>> strategy = UnbiasedSampling(FedAdam(fraction_train=0.1), journal="run.kvib")
        >>> strategy.budget(clients=500)
        50
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
        """The report of the last round."""
        self._sent: Sent | None = None
        self._news = News([], [], [], [])
        self._grid: Grid | None = None

    @property
    def sampler(self) -> AnySampler | None:
        """The sampler. None before the first client was met."""
        return self.fleet.sampler

    @property
    def refused(self) -> dict[Key, str]:
        """The reasons why clients of the last round did not answer, by key."""
        return self.fleet.refused

    def budget(self, clients: int, round: int = 0) -> float:
        """Return the budget of a round.

        Args:
            clients: The number of clients in the population, or the sum of their costs.
            round: The number of the round.
        """
        return self._budget(clients, round)

    def _strategy_budget(self, clients: float) -> float:
        """The number that the wrapped strategy would draw from this many clients."""
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
        """Run the rounds, as `Strategy.start` does.

        Args:
            grid: The grid that sends messages to the nodes.
            initial_arrays: The initial model.
            num_rounds: The number of rounds.
            timeout: The seconds for the answers of a round, unless a `deadline` was given.
            args: Further arguments of `Strategy.start`.
            kwargs: Further keyword arguments of `Strategy.start`.
        """
        seconds = self._sender.begin(timeout)
        return super().start(grid, initial_arrays, num_rounds, seconds, *args, **kwargs)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw a cohort, and return the messages that the wrapped strategy would send to it.

        Every round waits until `min_available_nodes` are online, as stock Flower does.

        Args:
            server_round: Flower's number of the round.
            arrays: The present model.
            config: The configuration that is sent to the clients.
            grid: The grid that lists the nodes.
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
        """The model that is sent, split into parameters and buffers."""
        arrays = to_arrays(sent)
        buffers = {name for name, array in arrays.items() if self._is_buffer(name, array)}
        return Model(arrays, buffers)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Estimate the step of full participation, and let the wrapped strategy take it.

        Args:
            server_round: Flower's number of the round.
            replies: The replies of the clients.
        """
        sent, self._sent = self._sent, None
        if sent is None or self._grid is None:
            return None, None
        replied = self._sender.reached(self._grid, sent, sorted_replies(sent, replies))
        collected, round = gathered(self.updates, sent, replied), sent.round
        answered = list(collected.records)
        self._watch.answers(len(round), round.unanswered)
        reporting = measured(collected.records, round.cohort.coefficients.tolist())
        self.fleet.compare(examples(reporting, self.strategy.weighted_by_key), SIZING)
        # A user's function for metrics may raise here, before the sampler learns.
        means = averages(self.strategy, reporting)
        outcome = None
        if self._watch.is_quorum(len(round), len(answered)):
            outcome = collected.combination.finish()
        else:
            round.give_up()
        standing, news = self.fleet.standing, self._news
        report = self.last = reported(sent, server_round, answered, outcome, standing, news)
        self._hand_on(report)
        metrics = {**means, **report.metrics()}
        if outcome is None:
            return None, MetricRecord(metrics)
        return self._stepped(sent, server_round, collected.model, outcome, metrics)

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
        arrays, record = step_of(self.strategy, server_round, sent.template, moved, metrics)
        if arrays is not None:  # a server optimiser must not change buffers and arrays not sent
            ours = next(iter(sent.template.content.array_records.values()))
            kept = sent.model.arrays.keys() - model.arrays.keys()
            arrays.update({name: Array(moved[name]) for name in model.buffers})
            arrays.update({name: ours[name] for name in kept})
        return arrays, record

    def _hand_on(self, report: RoundReport) -> None:
        """Call the user's function. An error in it is logged and does not end the run."""
        if self._on_round is None:
            return
        try:
            self._on_round(report)
        except Exception as error:  # a dashboard must not stop a training
            log(WARNING, "kvib: on_round failed in round %d: %r", report.round, error)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages with which the wrapped strategy evaluates.

        Args:
            server_round: Flower's number of the round.
            arrays: The present model.
            config: The configuration that is sent to the clients.
            grid: The grid that lists the nodes.
        """
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the evaluation metrics that the wrapped strategy computes.

        Args:
            server_round: Flower's number of the round.
            replies: The replies of the clients.
        """
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Write the policy, the procedure, the journal and the wrapped strategy to the log."""
        options = self.fleet.options
        procedure = options.procedure or options.policy.procedure
        log(INFO, "\t├──> kvib: %r, %r, journal %s", options.policy, procedure, options.journal)
        self.strategy.summary()

    def leave(self, keys: Key | Iterable[Key]) -> None:
        """Let clients leave, with their share of λ, until they introduce themselves anew.

        Args:
            keys: The key of one client, or the keys of several.
        """
        self.fleet.leave(listed(keys))

    def reweigh(self, weights: Mapping[Key, float]) -> None:
        """Change the weights of clients, until the server restarts.

        Args:
            weights: The new weights by client key, in the units of the others.
        """
        self.fleet.reweigh(by_key(weights))

    def switch(self, policy: Policy[Any] | str, procedure: Procedure | str | None = None) -> None:
        """Draw with another policy from the next round on, which learns from the journal's rounds.

        Args:
            policy: The new policy, or its name.
            procedure: The new procedure, or its name. None means the new policy's own if the old
                policy's own was in use, and keeps the procedure if another was.
        """
        self.fleet.switch(names.as_policy(policy), names.as_procedure(procedure))

    def close(self) -> None:
        """Close the journal, so that another strategy in the same process can open it."""
        self.fleet.close()


def _say(level: int, line: str) -> None:
    """Write a line to Flower's log."""
    log(level, "kvib: %s", line)
