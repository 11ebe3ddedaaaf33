"""Estimated variances of rivals, gathered round by round."""

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
"""Effective answers below which single clients decide the estimate."""
SURE = 4.0
"""Standard errors, where a warning shall not be a false alarm."""
ROUNDING = 1e-6
"""What single precision, in which journals keep probabilities, may take from a sum of shares."""


class Row(NamedTuple):
    """One policy in the logged rounds."""

    variance: Interval
    """Mean over the rounds."""
    ratio: Interval
    """To the logged variance, from the same answers: below 1 is a gain."""
    effective: float
    """Number of equally important answers that the estimate is worth, (Σc)²/Σc²."""
    per_round: FloatArray
    """The estimate of every measured round, [T]; single ones are noisy."""


class RoundMeasure(NamedTuple):
    """The estimates of one round."""

    values: list[float]
    """Estimated variance, as logged and then of each rival at each budget, [C + 1]."""
    squares: list[float]
    """Σc² of the contributions c of single answers, in the order of `values`."""
    reached: float
    """Σ count/(q·expected) / N: 1 on average if all can be drawn."""
    budget: float


class Measurements:
    """Every rival at each of its budgets (None: as logged), in every round since `since`.

    A round without feedback is left out. An empty cohort counts as heard, with or without feedback:
    there was nothing to hear, and to leave out empty cohorts would favour large ones.

    Args:
        rivals: each with its budgets.
        members: the clients, as of the first round.
        since: number of the first round to measure.
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
        """Feedback that rivals have not learned from, by its number."""
        self._missed = False
        """Whether feedback without an answer has come."""
        self.first: int | None = None
        """Number of the first round."""
        self.unanswered = 0
        """Rounds without feedback, left out."""
        self.silent = 0
        """Missing answers of clients whose response probability is 1."""
        self.early = 0
        """Missing answers of clients that had always answered, where that rate was learned."""
        self.unlisted = False
        """Whether clients were available at times, and the log does not say when."""

    def __len__(self) -> int:
        """Number of measured rounds."""
        return len(self._measured)

    @property
    def budget(self) -> float:
        """Mean budget of the measured rounds."""
        return float(np.mean([one.budget for one in self._measured]))

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
            answers, heard = cohort.take(answered), norms[answered]
            offer = self._offer(logged)
            if offer is not None and cohort.round >= self._since:
                pi = answers.weight * heard
                self._measured.append(self._measure(answers, pi, offer, logged))
                self._note_silence(logged, answered)
            number = -1 if logged.order is None else logged.order[1]
            self._unlearned.append(
                (number, partial(self._teach, answers, heard, bool(answered.all())))
            )

    def _check(self, cohort: Cohort, available: IntArray | None) -> None:
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
        """Repeat all changes and feedback that came before a draw, in order."""
        due = [one for one in self._unlearned if one[0] < before]
        self._unlearned = [one for one in self._unlearned if one[0] >= before]
        due += [(change.number, partial(change.happen, self._members)) for change in changes]
        for _, happen in sorted(due, key=itemgetter(0)):
            happen()

    def _teach(self, answers: Cohort, norms: FloatArray, complete: bool) -> None:
        self._missed |= not complete
        for rival, _ in self._rivals:
            rival.learn(answers, norms)

    def _offer(self, logged: Logged) -> Offer | None:
        """The clients that the round could draw; None if not known, and the round only teaches."""
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
        weight = answers.count / answers.expected_answers
        cap = self._members.setting.cap
        variance_terms = [(norm_part(pi, answers.answer_probability, answers.expected, cap), 0.0)]
        for rival, budgets in self._rivals:
            for budget in budgets:
                K = offer.affordable(offer.budget if budget is None else budget)
                variance_terms.append(rival.variance_terms(answers, pi, offer, K))
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
        cohort = logged.cohort
        lost = int(np.count_nonzero(cohort.lost(answered)))
        # A rate that is learned is 1 until an answer is missing, and below 1 for all after that.
        if cohort.guarantee == "consistent" and not self._missed:
            self.early += lost
        else:
            self.silent += lost
        self.unlisted |= logged.available is None and bool((cohort.availability < 1).any())

    def rows(self, level: float) -> tuple[Row, list[list[Row]]]:
        """The row of the log, and the rows of each rival, one for every budget."""
        if len(self) < 2:
            raise ValueError(
                f"{len(self)} rounds with feedback since round {self._since}: give at least 2, and "
                "some dozens for an interval that tells something"
            )
        z = normal_quantile(level)
        values = np.array([one.values for one in self._measured]).T
        squares = np.sum([one.squares for one in self._measured], axis=0)
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
        """Why these figures may be wrong."""
        return (*self._of_few(rows), *self._of_the_log())

    def _of_few(self, rows: Mapping[str, Row]) -> Iterable[str]:
        for label, row in rows.items():
            if 0 < row.effective < FEW:
                yield (
                    f"{label}: the estimate hangs on about {row.effective:.0f} answers, so single "
                    "clients decide it: log more rounds, or by a policy that draws all clients now "
                    "and then"
                )

    def _of_the_log(self) -> Iterable[str]:
        reached = mean_over_rounds(np.array([one.reached for one in self._measured]), SURE)
        if reached.high < 1 - ROUNDING:
            yield (
                f"the log stands for {below_all(reached.value)} of the clients only: the others "
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
    """A share below 1 in per cent, with as many digits as it takes not to say 100%."""
    shorter = (f"{share:.{digits}%}" for digits in range(6))
    return next(words for words in shorter if not words.startswith("100"))


def _missing(answers: int) -> str:
    return "1 answer is missing" if answers == 1 else f"{answers} answers are missing"
