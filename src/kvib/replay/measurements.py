"""Estimated variances of rivals (policies that could have drawn a log), round by round."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from kvib.cohort import Cohort, cohort_norms
from kvib.estimators.variance import norm_part
from kvib.replay.intervals import Interval, mean_over_rounds, normal_quantile, ratio_over_rounds
from kvib.replay.logged import Change, Logged
from kvib.replay.members import Members
from kvib.replay.rivals import Offer, Rival
from kvib.types import BoolArray, FloatArray, IntArray

FEW = 10.0
"""Number of effective answers below which single clients decide the estimate."""
SURE = 4.0
"""Standard errors of a warning that shall not be a false alarm."""
ROUNDING = 1e-6
"""Bound on the rounding of a sum of shares: journals keep probabilities in single precision."""


class Row(NamedTuple):
    """The estimated variance that one policy has in the logged rounds.

    Examples:
        >>> import numpy as np, kvib
        >>> from kvib.replay import Logged, Terms, replay
        >>> sampler, rounds = kvib.Sampler(kvib.Uniform(), [1, 2, 3, 4], budget=2), []
        >>> for _ in range(5):
        ...     cohort = sampler.draw()
        ...     rounds.append(Logged(cohort, np.ones(len(cohort))))
        >>> found = replay(rounds, {"by size": kvib.BySize()}, Terms([1, 2, 3, 4]))
        >>> found.rows["by size"].per_round.shape
        (5,)
    """

    variance: Interval
    """Mean variance over the rounds."""
    ratio: Interval
    """Ratio to the logged variance, from the same answers. Below 1 is a gain."""
    effective: float
    """Number of equally important answers that the estimate is worth, (Σc)²/Σc²."""
    per_round: FloatArray
    """The estimate of every measured round, [T]. Single ones are noisy."""


class RoundMeasure(NamedTuple):
    """The estimates of one round."""

    values: list[float]
    """Estimated variance, as logged and then of each rival at each budget, [C + 1]."""
    squares: list[float]
    """Σc² of the contributions c of single answers, in the order of `values`."""
    represented: float
    """Σ count/(q·expected) / N: 1 on average if all can be drawn."""
    budget: float
    """The budget of the round, as logged."""


class Measurements:
    """Estimated variances of every rival at each of its budgets, in every round since `since`.

    A round without feedback is left out. An empty cohort counts as answered, with or without
    feedback: no answer was missing, and leaving out empty cohorts would favour large ones.

    Args:
        rivals: The rivals, each with its budgets. A budget of None means that of each logged round.
        members: The clients at the first round.
        since: The number of the first round to measure.
    """

    def __init__(
        self,
        rivals: Sequence[tuple[Rival, Sequence[float | None]]],
        members: Members,
        since: int,
    ) -> None:
        self._rivals, self._members, self._since = rivals, members, since
        self._measured: list[RoundMeasure] = []
        self._unlearned: list[tuple[float, Callable[[], None]]] = []
        """Feedback that rivals have not learned from yet, with its place among all events."""
        self._missed = False
        """Whether an answer was missing in feedback that the rivals have learned from."""
        self.first: int | None = None
        """Number of the first round of the log."""
        self.unanswered = 0
        """Number of rounds without feedback, which are left out."""
        self.silent = 0
        """Number of missing answers from clients whose response probability is 1."""
        self.early = 0
        """Number of answers that were missing while the learned response rate was still 1."""
        self.unlisted = False
        """Whether clients were available at times only, and the log does not say when."""

    def __len__(self) -> int:
        """Number of measured rounds."""
        return len(self._measured)

    @property
    def budget(self) -> float:
        """Mean budget of the measured rounds."""
        return float(np.mean([measure.budget for measure in self._measured]))

    def add(self, logged: Logged) -> None:
        """Take the next round into account."""
        cohort, norms = logged.cohort, np.asarray(logged.norms, dtype=np.float64)
        self._catch_up(logged.changes, math.inf if logged.order is None else logged.order[0])
        self._check(cohort, logged.available)
        self.first = cohort.round if self.first is None else self.first
        if len(cohort) and not logged.answered:
            self.unanswered += cohort.round >= self._since
        elif cohort.budget > 0:
            answered = ~np.isnan(cohort_norms(cohort, norms))
            answers, answered_norms = cohort.take(answered), norms[answered]
            offer = self._offer(logged)
            if offer is not None and cohort.round >= self._since:
                pi = answers.weight * answered_norms
                self._measured.append(self._measure(answers, pi, offer, logged))
                self._note_silence(logged, answered)
            number = -1 if logged.order is None else logged.order[1]
            teach = partial(self._teach, answers, answered_norms, bool(answered.all()))
            self._unlearned.append((number, teach))

    def _check(self, cohort: Cohort, available: IntArray | None) -> None:
        """Refuse a round that cannot be replayed."""
        if cohort.guarantee == "biased":
            raise ValueError(
                "a selector's cohort has no inclusion probabilities: nothing to replay"
            )
        known = self._members.known
        for ids, what in ((cohort.ids, "drawn"), (available, "available")):
            if ids is not None and len(ids) and ids[-1] >= known:
                raise ValueError(
                    f"client {ids[-1]} was {what} in round {cohort.round}, but there are weights "
                    f"of {known} clients; give those of all who were there at the beginning, and "
                    "the `changes` by which others came"
                )

    def _catch_up(self, changes: Iterable[Change], before: float) -> None:
        """Repeat all changes and feedback that came before a draw, in order.

        Args:
            changes: Changes of the population since the draw before.
            before: The place of the draw among all events.
        """
        due = [entry for entry in self._unlearned if entry[0] < before]
        self._unlearned = [entry for entry in self._unlearned if entry[0] >= before]
        due += [(change.number, partial(change.happen, self._members)) for change in changes]
        for _, happen in sorted(due, key=itemgetter(0)):
            happen()

    def _teach(self, answers: Cohort, norms: FloatArray, complete: bool) -> None:
        """Let all rivals learn from the answers of a round; `complete`: no answer is missing."""
        self._missed |= not complete
        for rival, _ in self._rivals:
            rival.learn(answers, norms)

    def _offer(self, logged: Logged) -> Offer | None:
        """The clients that the round could draw; None if they are not known.

        A round with None teaches the rivals and is not measured.
        """
        cohort, members, ids = logged.cohort, self._members, logged.eligible(self._members.here)
        if ids is None:
            return None
        ids = ids[members.are_here(ids)]
        if not np.isin(cohort.ids, ids, assume_unique=True).all():
            raise ValueError(
                f"a client was drawn in round {cohort.round} that could not be, as the log says; "
                "give the rounds as they were, with the clients that they were drawn among"
            )
        prices = members.prices(ids)
        if prices is None:
            return Offer(ids, None, cohort.budget)
        return Offer(ids, prices, min(cohort.requested, float(prices.sum())))

    def _measure(
        self, answers: Cohort, pi: FloatArray, offer: Offer, logged: Logged
    ) -> RoundMeasure:
        """The estimates of one round, as logged and of every rival at each budget."""
        weight = answers.count / answers.expected_answers
        cap = self._members.setting.cap
        variance_terms = [(norm_part(pi, answers.answer_probability, answers.expected, cap), 0.0)]
        for rival, budgets in self._rivals:
            for budget in budgets:
                K = offer.affordable(offer.budget if budget is None else budget)
                variance_terms.append(rival.variance_terms(answers, pi, offer, K))
        # With availabilities below 1 the estimate stands for all clients but the absent ones.
        stands_for = len(offer.ids)
        if (logged.cohort.availability < 1).any() and logged.absent is not None:
            here = self._members.are_here(logged.absent)
            stands_for = len(self._members) - int(np.count_nonzero(here))
        return RoundMeasure(
            [float(weight @ y) + y0 for y, y0 in variance_terms],
            [float(((weight * y) ** 2).sum()) for y, _ in variance_terms],
            float(weight.sum()) / stands_for,
            offer.budget,
        )

    def _note_silence(self, logged: Logged, answered: BoolArray) -> None:
        """Count answers that are missing although they were certain, for the warnings."""
        cohort = logged.cohort
        lost = int(np.count_nonzero(cohort.lost(answered)))
        # A rate that is learned is 1 until an answer is missing, and below 1 for all after that.
        if cohort.guarantee == "consistent" and not self._missed:
            self.early += lost
        else:
            self.silent += lost
        self.unlisted |= logged.available is None and bool((cohort.availability < 1).any())

    def rows(self, level: float) -> tuple[Row, list[list[Row]]]:
        """The row of the log, and the rows of each rival, one for every budget.

        Args:
            level: The probability of the intervals.
        """
        if len(self) < 2:
            raise ValueError(
                f"{len(self)} rounds with feedback since round {self._since}: give at least 2, and "
                "some dozens for an interval that tells something"
            )
        z = normal_quantile(level)
        values = np.array([measure.values for measure in self._measured]).T
        squares = np.sum([measure.squares for measure in self._measured], axis=0)
        every = iter(
            Row(
                mean_over_rounds(own, z),
                ratio_over_rounds(own, values[0], z),
                float(own.sum() ** 2 / weight) if weight > 0 else 0.0,
                own,
            )
            for own, weight in zip(values, squares, strict=True)
        )
        return next(every), [[next(every) for _ in budgets] for _, budgets in self._rivals]

    def warnings(self, rows: Mapping[str, Row]) -> tuple[str, ...]:
        """Reasons why these figures may be wrong."""
        return (*self._of_few(rows), *self._of_the_log())

    def _of_few(self, rows: Mapping[str, Row]) -> Iterable[str]:
        """Warnings of estimates that few answers decide."""
        for label, row in rows.items():
            if 0 < row.effective < FEW:
                yield (
                    f"{label}: the estimate hangs on about {row.effective:.0f} answers, so single "
                    "clients decide it: log more rounds, or by a policy that draws all clients now "
                    "and then"
                )

    def _of_the_log(self) -> Iterable[str]:
        """Warnings of what the log lacks."""
        shares = np.array([measure.represented for measure in self._measured])
        share = mean_over_rounds(shares, SURE)
        if share.high < 1 - ROUNDING:
            yield (
                f"the log stands for {below_all(share.value)} of the clients only: the others "
                "could not be drawn, or so rarely that they never were; what they would add is "
                "missing"
            )
        if self.first and self._since <= self.first:
            yield (
                f"the log begins with round {self.first}: policies have learned nothing of what "
                "came before, so measure the last rounds only"
            )
        if self.unlisted:
            yield (
                "clients were available at times, and the log does not say when: other policies "
                "are replayed as if all could be drawn, which makes their variance too large"
            )
        if self.silent:
            yield (
                f"{_missing(self.silent)} of clients with response probability 1: all variances "
                "are too small; give the sampler response="
            )
        if self.early:
            yield (
                f"{_missing(self.early)} from rounds drawn before the sampler, which learns the "
                "rate of answers, had ever missed one: their variances are too small, those of "
                "later rounds are not"
            )


def below_all(share: float) -> str:
    """A share below 1 in per cent, with enough digits that it does not read 100%."""
    shorter = (f"{share:.{digits}%}" for digits in range(6))
    return next(words for words in shorter if not words.startswith("100"))


def _missing(answers: int) -> str:
    """The beginning of a warning that this many answers are missing."""
    return "1 answer is missing" if answers == 1 else f"{answers} answers are missing"
