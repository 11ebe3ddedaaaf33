"""Everything that can happen to a sampler in a journal, done the first time and again."""

import math
from dataclasses import replace

import numpy as np

from kvib.cohort import Cohort
from kvib.estimators.streaming import Ended
from kvib.estimators.variance import deviation
from kvib.journal import cohorts
from kvib.journal.layout import GIVE_UP, Answered, Drawn, storable
from kvib.journal.recorder import Doing, Done, Recorder
from kvib.journal.records import EventRecord
from kvib.sampler.drawing import Conditions
from kvib.types import FloatArray


def _draw(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    given = Conditions(
        **{
            name.removeprefix("given "): value
            for name, value in record.items()
            if name.startswith("given ")
        }
    )
    if "ids" in record:
        cohort = recorder.drawn_again(record, given)
    elif "checked in" in record:
        cohort = recorder.sampler.gather(record["checked in"])
    else:
        cohort = recorder.sampler.draw(**given._asdict())
    recorder.recent[cohort.round] = replace(cohort, pairs=None)  # they hold on to [N] numbers
    total = float(cohort.coefficients.sum())
    row = Drawn(cohort.round, 0, len(cohort), float(cohort.budget), total)
    return Done(cohort.round, cohorts.short(cohort, recorder.begun_weights), row, cohort)


def _update(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    cohort, norms = recorder.waiting(round), record["norms"].astype(np.float64)
    state = recorder.sampler.state
    state.rounds.check(cohort)
    state.learning.learn(cohort, norms)
    return _learned(recorder, cohort, norms)


def _finish(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    cohort, norms = recorder.waiting(round), record["norms"].astype(np.float64)
    sketches = record["sketches"].astype(np.float64)
    ended = Ended(cohort, norms, sketches, record["usual"], [])
    recorder.sampler.state.learning.finish(ended)
    return _learned(recorder, cohort, norms, record.get("variance"))


def _learned(
    recorder: Recorder, cohort: Cohort, norms: FloatArray, seen: float | None = None
) -> Done:
    """The round is over; its variance as `seen` in the updates, or as far as norms tell."""
    recorder.recent.pop(cohort.round, None)
    variance, known = math.nan if seen is None else seen, recorder.with_moments(cohort)
    if seen is None and known.pairs is not None:
        variance = deviation(known, norms, None).value
    answered = int(np.count_nonzero(~np.isnan(norms)))
    digest = cohorts.digest(norms.astype(np.float32))
    return Done(cohort.round, row=Answered(cohort.round, 0, answered, storable(variance), digest))


def _give_up(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    cohort = recorder.waiting(round)
    recorder.sampler.give_up(cohort)
    recorder.recent.pop(cohort.round, None)
    return Done(round)


def _check_in(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    if recorder.sampler.round >= recorder.since:  # else another policy drew it: a fact
        recorder.sampler.state.check_in.open()
    return Done()


def _join(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    before = _before(recorder, record)
    ids = recorder.sampler.join(record["weights"], record.get("keys"), record.get("cost"))
    return Done(outcome={"ids": ids, **before}, result=ids)


def _leave(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    recorder.sampler.leave(record["keys"])
    return Done()


def _reweigh(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    before = _before(recorder, record)
    recorder.sampler.reweigh(record["keys"], record["weights"])
    return Done(outcome=before)


def _before(recorder: Recorder, record: EventRecord) -> EventRecord:
    """What clients weighed and cost before they come back or are weighed anew: a journal that has
    forgotten its beginning goes back from a snapshot to what they were in its first round."""
    recorder.keep_begun_weights()
    population, cost = recorder.sampler.state.population, recorder.sampler.state.prices.cost
    ids = population.found(record.get("keys", []))
    if (ids < 0).all():
        return {}
    before = {"before": np.where(ids < 0, np.nan, population.raw[ids])}
    if cost is not None:
        before["cost before"] = np.where(ids < 0, np.nan, cost[ids])
    return before


def _known(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Another kvib or another policy took over here; the snapshot with it knows."""
    return Done()


KINDS: dict[str, Doing] = {
    "draw": _draw,
    "check in": _check_in,
    "update": _update,
    "finish": _finish,
    "join": _join,
    "leave": _leave,
    "reweigh": _reweigh,
    GIVE_UP: _give_up,
    "upgrade": _known,
    "switch": _known,
}
"""Everything that changes a sampler, and how it is done."""
