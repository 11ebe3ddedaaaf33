"""Flower (https://flower.ai): unbiased adaptive sampling around any strategy that averages.

The server's side is `UnbiasedSampling(strategy)`, the client's one line: `introduce(app, size=…)`.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import INFO
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from kvib import rows
from kvib.cohort import Cohort, FloatArray
from kvib.estimators import deviation
from kvib.guard import Guard
from kvib.integrations.fleet import (
    EstimateAvailability,
    Fleet,
    Introduction,
    Key,
    Offline,
    Plan,
    Renormalise,
    only,
)
from kvib.policies import Forecast, Policy
from kvib.procedures import Procedure
from kvib.rates import EstimatedRate
from kvib.sampler import Sampler

__all__ = [
    "EstimateAvailability",
    "Hidden",
    "KVibFedAvg",
    "Renormalise",
    "UnbiasedSampling",
    "Visible",
    "introduce",
    "scaled_update",
]

QUESTION = f"{MessageType.QUERY}.kvib"
NO_SUCH_FUNCTION = (2, 6)  # the ClientApp raised, or a mod of it refused: nobody to introduce it
LARGEST = float(np.finfo(np.float32).max)
SMALL = 4096
"""Models of so many parameters have their variance estimated exactly, larger ones from"""
SKETCH = 256
"""numbers of each update, which tell inner products to 9 % of the norms."""

ROBUST = (
    "it picks or trims updates by comparing them with each other, and λ/p makes them of different "
    "size on purpose; use FedAvg or its kin inside, and guard=kvib.Guard() against outliers"
)
PRIVATE = (
    "its noise is made for a plain mean of clipped updates, and λ/p changes what one client can "
    "contribute; there is no accounting for that yet, so train without kvib or without it"
)
TREES = "it collects trees, which cannot be averaged, let alone weighted by λ/p"
REFUSED: dict[type[Strategy], str] = {
    Bulyan: ROBUST,
    FedMedian: ROBUST,
    FedTrimmedAvg: ROBUST,
    MultiKrum: ROBUST,
    QFedAvg: "it reweighs clients by their loss, another objective than Σ λ_i f_i; use FedAvg",
    FedXgbBagging: TREES,
    FedXgbCyclic: TREES,
    DifferentialPrivacyClientSideAdaptiveClipping: PRIVATE,
    DifferentialPrivacyClientSideFixedClipping: PRIVATE,
    DifferentialPrivacyServerSideAdaptiveClipping: PRIVATE,
    DifferentialPrivacyServerSideFixedClipping: PRIVATE,
}
"""Strategies, their subclasses included, for which λ/p makes no sense, and why."""


# The client's side


def introduce(app: ClientApp, size: Callable[[Context], float] | None = None) -> None:
    """Let the clients of an app tell who they are and how much data they have.

    The key is `client-id` of the node config, else `partition-id`; where there is neither, the
    server uses the node id, which is new after every restart of an unauthenticated SuperNode.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> introduce(app, size=lambda context: 120)

    Args:
        app: where the question of the server shall be answered.
        size: of a client's data, the λ of its update before normalising; None: all are equal.
    """

    @app.query("kvib")
    def answer(message: Message, context: Context) -> Message:
        said = ConfigRecord()
        if "client-id" in context.node_config:
            said["key"] = str(context.node_config["client-id"])
        elif "partition-id" in context.node_config:
            said["key"] = int(context.node_config["partition-id"])
        try:
            if size is not None:
                said["size"] = float(size(context))
        except Exception as error:  # told, not raised: then the server knows us, and asks again
            said["problem"] = repr(error)
        return Message(RecordDict({"kvib": said}), reply_to=message)


def scaled_update(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod for `Hidden` updates: reply with coefficient·(x − x_i) and the norm ‖x − x_i‖.

    Put mods that mask before it in `ClientApp(mods=[…])`: the first sees the reply last.
    """
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        return call_next(message, context)
    told = message.content["kvib"]
    assert isinstance(told, ConfigRecord)
    model = _Model(next(iter(message.content.array_records.values())), set(_strings(told)))
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    row, buffers = model.difference(reply.content)
    coefficient = float(cast(float, told["coefficient"]))
    name = next(iter(reply.content.array_records))
    scaled = model.apart(coefficient * row, {k: coefficient * b for k, b in buffers.items()})
    reply.content[name] = ArrayRecord({k: Array(v) for k, v in scaled.items()})
    reply.content["kvib"] = ConfigRecord({"norm": _norm(row)})
    return reply


def _strings(told: ConfigRecord) -> list[str]:
    return cast(list[str], told["buffers"])


# Updates


class BadReplyError(ValueError):
    """What a client sent is no update of this model."""


def running_statistics(name: str, array: NDArray[Any]) -> bool:
    """Whether an array is no parameter but counts or measures: BatchNorm's, and all integers."""
    last = name.split(".")[-1]
    return last in {"running_mean", "running_var", "num_batches_tracked"} or array.dtype.kind != "f"


class _Model:
    """The arrays of a model: parameters, which learn, and buffers, which are only averaged."""

    def __init__(self, record: ArrayRecord, buffers: set[str]) -> None:
        self.arrays = {name: array.numpy() for name, array in record.items()}
        self.buffers = buffers
        self.parameters = [name for name in self.arrays if name not in buffers]

    def difference(self, content: RecordDict) -> tuple[FloatArray, dict[str, FloatArray]]:
        """x − x_i of a reply as one row, [d], and its buffers."""
        theirs = self.read(content)
        with np.errstate(over="ignore", invalid="ignore"):
            parts = [
                (self.arrays[name].astype(np.float64) - theirs[name]).ravel()
                for name in self.parameters
            ]
        row = np.concatenate([np.empty(0), *parts])
        return row, {name: theirs[name].astype(np.float64) for name in self.buffers}

    def joined(self, content: RecordDict) -> tuple[FloatArray, dict[str, FloatArray]]:
        """The same of a reply that has differences in it already."""
        theirs = self.read(content)
        parts = [theirs[name].astype(np.float64).ravel() for name in self.parameters]
        buffers = {name: theirs[name].astype(np.float64) for name in self.buffers}
        return np.concatenate([np.empty(0), *parts]), buffers

    def read(self, content: RecordDict) -> dict[str, NDArray[Any]]:
        """The arrays of a reply, checked against ours."""
        records = [part for part in content.values() if isinstance(part, ArrayRecord)]
        if len(records) != 1:
            raise BadReplyError(f"{len(records)} ArrayRecords instead of one")
        [record] = records
        if set(record) != set(self.arrays):
            odd = sorted(set(record) ^ set(self.arrays))
            raise BadReplyError(f"array {odd[0]!r} is not in both its model and ours")
        theirs = {}
        for name, array in self.arrays.items():
            try:
                theirs[name] = record[name].numpy()
            except (ValueError, TypeError, OSError, EOFError) as error:
                raise BadReplyError(f"array {name!r} cannot be read: {error}") from error
            if theirs[name].shape != array.shape:
                raise BadReplyError(
                    f"array {name!r} has shape {theirs[name].shape}, in the model {array.shape}"
                )
            if theirs[name].dtype.kind not in "fiub":
                raise BadReplyError(f"array {name!r} is of type {theirs[name].dtype}")
        return theirs

    def apart(
        self, row: FloatArray, buffers: Mapping[str, FloatArray]
    ) -> dict[str, NDArray[np.float64]]:
        """A row as arrays by name, with the buffers among them."""
        arrays, at = {}, 0
        for name, array in self.arrays.items():
            if name in self.buffers:
                arrays[name] = np.asarray(buffers[name])
            else:
                arrays[name] = row[at : at + array.size].reshape(array.shape)
                at += array.size
        return arrays

    def moved(self, d: Any, buffers: Mapping[str, FloatArray]) -> ArrayRecord:
        """x − d, in the types of the model."""
        size = sum(self.arrays[name].size for name in self.parameters)
        steps = self.apart(np.broadcast_to(np.asarray(d, np.float64), (size,)), self.arrays)
        moved = {}
        for name, array in self.arrays.items():
            if name in self.buffers:
                new = buffers.get(name, array)
                new = np.rint(new) if array.dtype.kind != "f" else new
            else:
                new = array.astype(np.float64) - steps[name]
            moved[name] = Array(np.asarray(new).astype(array.dtype))
        return ArrayRecord(moved)


class _Answer(NamedTuple):
    position: int
    content: RecordDict


@dataclass
class _Round:
    """One round between `configure_train` and `aggregate_train`."""

    cohort: Cohort
    keys: list[Key]
    model: ArrayRecord
    buffers: set[str]
    template: Message
    sent: dict[int, Message] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    online: int = 0


class _Outcome(NamedTuple):
    d: Any
    buffers: dict[str, FloatArray]
    norms: FloatArray
    variance: float
    cut: float


@dataclass(frozen=True)
class Visible:
    """The server sees the updates: it computes their norms itself, and trusts nobody with them."""

    @property
    def tells(self) -> bool:
        """Whether clients must know their coefficients."""
        return False

    def combine(
        self, sampler: Sampler, round: _Round, answers: Iterable[_Answer], model: _Model
    ) -> _Outcome:
        """Σ coefficient·(x − x_i), one reply at a time; the sampler has learned then."""
        cohort = round.cohort
        estimation = sampler.begin(cohort)
        factors, weight = cohort.coefficients, 0.0
        size = sum(model.arrays[name].size for name in model.parameters)
        sketches = np.empty((len(cohort), size if size <= SMALL else SKETCH))
        buffers: dict[str, FloatArray] = {}
        for position, content in answers:
            try:
                row, own = model.difference(content)
                _must_be_finite(_norm(row), own)
            except BadReplyError as error:
                round.refused[round.keys[position]] = str(error)
                continue
            estimation.add(only(cohort, position), row[None])
            sketches[position] = row if size <= SMALL else rows.sketch(row[None], SKETCH)[0]
            weight += factors[position]
            _accumulate(buffers, own, float(factors[position]))
        came = ~np.isnan(estimation.norms)
        pairs = None if cohort.pairs is None else cohort.pairs()
        gram = None
        if pairs is None or not pairs.uncorrelated:  # else norms suffice
            gram = sketches[came] @ sketches[came].T
        variance = deviation(cohort, estimation.norms, gram, pairs)
        d = estimation.finish()
        mean = {name: total / weight for name, total in buffers.items()}
        return _Outcome(d, mean, estimation.norms, variance.value, estimation.cut)


@dataclass(frozen=True)
class Hidden:
    """Clients scale their updates themselves (`scaled_update`); only the sum has a meaning.

    The norms are what clients say. The guard bounds what a lie teaches the sampler, and nothing
    bounds what a hidden update does to the model.

    Args:
        complete: masks cancel only in the sum of all, so a round in which somebody is missing
            leaves the model as it is. False: without masks, or with masks that survive losses.
    """

    complete: bool = True

    @property
    def tells(self) -> bool:
        """Whether clients must know their coefficients."""
        return True

    def combine(
        self, sampler: Sampler, round: _Round, answers: Iterable[_Answer], model: _Model
    ) -> _Outcome:
        """The sum of what came; the sampler has learned then."""
        cohort, d, buffers = round.cohort, np.zeros(()), dict[str, FloatArray]()
        norms = np.full(len(cohort), np.nan)
        for position, content in answers:
            try:
                norm = _reported(content)
                row, own = model.joined(content)
                _must_be_finite(_norm(row), own)
            except BadReplyError as error:
                round.refused[round.keys[position]] = str(error)
                continue
            norms[position] = norm
            d = d + row
            _accumulate(buffers, own, 1.0)
        came, factors = ~np.isnan(norms), cohort.coefficients
        cut = usual = 0.0
        if sampler.guard is not None:
            watch = sampler.guard.watch(len(cohort), sampler.usual_step)
            shares = factors[came] * norms[came]
            norms[came] *= watch.shorten(came, shares, shares)
            cut, usual = watch.cut, watch.total()
        nothing = np.zeros((len(cohort), sampler.sketches.size))
        variance = deviation(cohort, norms, None).value
        sampler.finish(cohort, norms, nothing, usual, [])
        if self.complete and not came.all():
            return _Outcome(0.0, {}, norms, math.nan, cut)
        weight = float(factors[came].sum())
        mean = {name: total / weight for name, total in buffers.items()}
        return _Outcome(d, mean, norms, variance, cut)


def _reported(content: RecordDict) -> float:
    said = content.config_records.get("kvib", ConfigRecord()).get("norm")
    if not isinstance(said, float) or not 0 <= said <= LARGEST:
        raise BadReplyError(f"it reports the norm {said!r}; ClientApp(mods=[…, scaled_update])?")
    return said


def _norm(row: FloatArray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(row))


def _must_be_finite(norm: float, buffers: Mapping[str, FloatArray]) -> None:
    if not norm <= LARGEST:
        raise BadReplyError(f"‖x − x_i‖ is {norm}: it diverged, or has no numbers in it")
    for name, array in buffers.items():
        if not np.isfinite(array).all():
            raise BadReplyError(f"array {name!r} has no finite numbers")


def _accumulate(total: dict[str, FloatArray], more: dict[str, FloatArray], factor: float) -> None:
    for name, array in more.items():
        total[name] = total.get(name, np.zeros(())) + factor * array


# The server's side


class _TwoNodes:
    """A grid in which there are two nodes: enough to see what a strategy sends, and if to all."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        return [1, 2]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


@contextmanager
def _content_with_two(strategy: FedAvg) -> Iterator[None]:
    """The strategy is content with those two."""
    wanted = strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes
    if strategy.fraction_train > 0:
        strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes = 1.0, 2, 2
    try:
        yield
    finally:
        strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes = wanted


class UnbiasedSampling(Strategy):
    """Draws who trains, and makes of the replies the step of full participation, on average.

    Wraps any strategy that averages: FedAvg, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedProx. That
    one still decides what clients are sent, optimises on the server, and evaluates; it is given
    one reply, x − Σ λ_i/(q_i p_i)·(x − x_i), instead of many.

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
        guard: bounds what one client can do in a round; None for an estimate without bias.
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
        guard: Guard | None = Guard(),  # noqa: B008
        updates: Visible | Hidden = Visible(),  # noqa: B008
        buffers: Callable[[str, NDArray[Any]], bool] = running_statistics,
        query_timeout: float = 300.0,
    ) -> None:
        self.strategy = _averaging(strategy)
        self._average_metrics = self.strategy.train_metrics_aggr_fn
        self.strategy.train_metrics_aggr_fn = _as_given
        chosen = Forecast() if policy is None else policy
        if chosen.needs_norms:
            raise ValueError(
                f"{type(chosen).__name__} must know every client's norm before it draws, which "
                "takes a full round; choose another policy"
            )
        if budget is not None and not 0 < budget < math.inf:
            raise ValueError(f"budget={budget} is not a positive number of clients per round")
        self._budget = budget
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
                guard=guard,
            )
        )
        self.updates, self._is_buffer, self._query_timeout = updates, buffers, query_timeout
        self.refused: dict[Key, str] = {}
        """Why clients of the last round were not heard, by key."""
        self.cohort: Cohort | None = None
        """Of the last round."""
        self._round: _Round | None = None
        self._begun = False

    @property
    def sampler(self) -> Sampler | None:
        """None before the first client was met."""
        return self.fleet.sampler

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
        self._round = None
        template = self._template(server_round, arrays, config, grid)
        if template is None:
            return []
        online = self._online(grid)
        cohort = self.fleet.draw(online)
        if cohort is None:
            log(INFO, "kvib: nobody has introduced itself yet; the model stays")
            return []
        sent = next(iter(template.content.array_records.values()))
        buffers = {name for name, a in sent.items() if self._is_buffer(name, a.numpy())}
        keys = self.fleet.names(cohort)
        round = _Round(cohort, keys, sent, buffers, template, online=len(online))
        for position, key in enumerate(keys):
            node = self.fleet.address(key)
            if isinstance(node, int) and node in online:
                round.sent[position] = self._addressed(round, position, node)
        self._round, self.cohort = round, cohort
        log(INFO, "kvib: drew %d clients, %d nodes online", len(cohort), len(online))
        return list(round.sent.values())

    def _template(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Message | None:
        """What the wrapped strategy sends, to whomever."""
        two = cast(Grid, _TwoNodes(grid))
        with _content_with_two(self.strategy):
            messages = list(self.strategy.configure_train(server_round, arrays, config, two))
        if any(message.content is not messages[0].content for message in messages):
            raise ValueError(
                f"{type(self.strategy).__name__} sends each node something else, so its messages "
                "cannot be sent to others; put what differs into the ClientApp"
            )
        return messages[0] if messages else None

    def _addressed(self, round: _Round, position: int, node: int) -> Message:
        metadata, content = round.template.metadata, round.template.content
        if self.updates.tells:
            told = ConfigRecord(
                {
                    "coefficient": float(round.cohort.coefficients[position]),
                    "position": position,
                    "size": len(round.cohort),
                    "round": round.cohort.round,
                    "buffers": sorted(round.buffers),
                }
            )
            content = RecordDict({**content, "kvib": told})
        return Message(content, node, metadata.message_type, ttl=metadata.ttl)

    def _online(self, grid: Grid) -> set[int]:
        """Node ids, after all of them were asked who they are."""
        wanted = 1 if self._begun else self.strategy.min_available_nodes
        while len(online := set(grid.get_node_ids())) < wanted and not self._begun:
            log(INFO, "kvib: waiting for nodes, %d of %d are there", len(online), wanted)
            time.sleep(1)
        self._begun = True
        strangers = cast(list[int], self.fleet.strangers(sorted(online)))
        if strangers:
            asked = [Message(RecordDict(), node, QUESTION) for node in strangers]
            replies = grid.send_and_receive(asked, timeout=self._query_timeout)
            by_id = {message.metadata.message_id: message for message in asked}
            self.fleet.meet(
                introduction
                for reply in replies
                if (question := by_id.get(reply.metadata.reply_to_message_id)) is not None
                and (introduction := _heard(question.metadata.dst_node_id, reply)) is not None
            )
        return online

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Estimate the step of full participation, and let the wrapped strategy take it."""
        round, self._round = self._round, None
        if round is None or self.sampler is None:
            return None, None
        model = _Model(round.model, round.buffers)
        answers = self._answers(round, replies)
        outcome = self.updates.combine(self.sampler, round, answers, model)
        self.refused = round.refused
        for key, reason in round.refused.items():
            log(INFO, "kvib: client %s was not heard: %s", key, reason)
        metrics = self._metrics(round, outcome, answers)
        metrics[self.strategy.weighted_by_key] = 1.0
        content = {
            self.strategy.arrayrecord_key: model.moved(outcome.d, outcome.buffers),
            "metrics": metrics,
        }
        reply = Message(RecordDict(cast(Any, content)), reply_to=round.template)
        arrays, metrics_or_none = self.strategy.aggregate_train(server_round, [reply])
        if arrays is not None:  # averaging has made floating-point numbers of counters
            for name in round.buffers:
                kind = model.arrays[name].dtype
                arrays[name] = Array(np.asarray(arrays[name].numpy().astype(kind)))
        return arrays, metrics_or_none

    def _answers(self, round: _Round, replies: Iterable[Message]) -> list[_Answer]:
        """Whose reply is which: a dead node's is from the SuperLink, so go by the message."""
        positions = {
            message.metadata.message_id: position for position, message in round.sent.items()
        }
        answers = {}
        for reply in replies:
            position = positions.pop(reply.metadata.reply_to_message_id, None)
            if position is None:
                continue  # late, or sent twice
            if reply.has_error():
                reason = f"error {reply.error.code}: {reply.error.reason}"
                round.refused[round.keys[position]] = reason
            else:
                answers[position] = _Answer(position, reply.content)
        for position, key in enumerate(round.keys):
            if position not in round.sent:
                round.refused[key] = "it is offline"
            elif position not in answers:
                round.refused.setdefault(key, "no answer in time")
        return [answers[position] for position in sorted(answers)]

    def _metrics(self, round: _Round, outcome: _Outcome, answers: list[_Answer]) -> MetricRecord:
        """Of the clients, averaged by coefficient as the wrapped strategy does; and of the draw."""
        cohort = round.cohort
        came = ~np.isnan(outcome.norms)
        factors = cohort.coefficients
        told = [
            (dict(records[0]), float(factors[position]))
            for position, content in answers
            if came[position]
            and len(records := [r for r in content.values() if isinstance(r, MetricRecord)]) == 1
        ]
        metrics = self._averaged(told) if told else MetricRecord()
        metrics["kvib-round"] = cohort.round
        metrics["kvib-cohort"] = len(cohort)
        metrics["kvib-missing"] = int(np.count_nonzero(~came))
        metrics["kvib-coefficients"] = float(factors[came].sum())
        metrics["kvib-variance"] = outcome.variance
        metrics["kvib-cut"] = outcome.cut
        metrics["kvib-online"] = round.online
        return metrics

    def _averaged(self, told: list[tuple[dict[str, Any], float]]) -> MetricRecord:
        """What clients measured, those things that all of them did."""
        key, names = self.strategy.weighted_by_key, list(told[0][0])
        common = [name for name in names if all(name in record for record, _ in told)]
        if self._average_metrics is not aggregate_metricrecords:
            contents = [
                RecordDict({"metrics": MetricRecord({**{n: r[n] for n in common}, key: weight})})
                for r, weight in told
            ]
            return self._average_metrics(contents, key)
        weights = np.array([weight for _, weight in told])
        values = {name: [record[name] for record, _ in told] for name in common if name != key}
        means = {
            name: weights @ np.array(column) / weights.sum() for name, column in values.items()
        }
        return MetricRecord({name: mean.tolist() for name, mean in means.items()})

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
        log(INFO, "\t├──> kvib: %r, %r, journal %s", plan.policy, plan.procedure, plan.journal)
        self.strategy.summary()

    def leave(self, keys: Iterable[Key]) -> None:
        """Clients that will not come back go, with their share of the objective."""
        self.fleet.leave(keys)

    def close(self) -> None:
        """Let go of the journal, for another strategy in the same process."""
        close = getattr(self.sampler, "close", None)
        if close is not None:
            close()


class KVibFedAvg(UnbiasedSampling):
    """FedAvg with unbiased adaptive sampling: takes FedAvg's arguments, and ours by keyword.

    >>> strategy = KVibFedAvg(fraction_train=0.1, min_available_nodes=10, journal="run.kvib")
    """

    def __init__(
        self,
        *fedavg: Any,
        policy: Policy[Any] | None = None,
        budget: float | None = None,
        procedure: Procedure | None = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        weights: Mapping[Key, float] | None = None,
        offline: Offline = EstimateAvailability(),  # noqa: B008
        response: float | EstimatedRate | Mapping[Key, float] = EstimatedRate(),  # noqa: B008
        guard: Guard | None = Guard(),  # noqa: B008
        **options: Any,
    ) -> None:
        super().__init__(
            FedAvg(*fedavg, **options),
            policy,
            budget=budget,
            procedure=procedure,
            seed=seed,
            journal=journal,
            weights=weights,
            offline=offline,
            response=response,
            guard=guard,
        )


def _averaging(strategy: Strategy) -> FedAvg:
    """Refuse what cannot be given an estimate instead of replies."""
    name = type(strategy).__name__
    for kind, reason in REFUSED.items():
        if isinstance(strategy, kind):
            raise ValueError(f"{name} cannot be wrapped: {reason}")
    if isinstance(strategy, UnbiasedSampling):
        raise ValueError(f"{name} samples without bias already; wrap the strategy inside it")
    if not isinstance(strategy, FedAvg):
        raise ValueError(
            f"{name} cannot be wrapped: only FedAvg and its kin (FedAvgM, FedAdam, FedYogi, "
            "FedAdagrad, FedProx) are known to take an average and nothing else"
        )
    if type(strategy).start is not Strategy.start:
        raise ValueError(f"{name} has a start() of its own, which would not be called")
    return strategy


def _as_given(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Metrics that were averaged already."""
    [content] = contents
    given = next(iter(content.metric_records.values()))
    return MetricRecord({name: v for name, v in given.items() if name != weighted_by_key})


def _heard(node: int, reply: Message) -> Introduction | None:
    """Who a node is; None: ask again next round."""
    if reply.has_error():
        unknown = reply.error.code in NO_SUCH_FUNCTION
        return Introduction(node, f"node-{node}") if unknown else None
    said = reply.content.config_records.get("kvib", ConfigRecord())
    if "problem" in said:
        log(INFO, "kvib: node %s cannot tell its size: %s", node, said["problem"])
        return None
    key, size = said.get("key", f"node-{node}"), said.get("size")
    return Introduction(
        node,
        key if isinstance(key, str | int) else str(key),
        float(size) if isinstance(size, int | float) else None,
    )
