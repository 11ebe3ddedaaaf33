"""The kinds of journal events: how each is done to a sampler, the first time and in a replay.

Each function takes the recorder, the round (if it is known before) and the record of the call.
"""

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
    """Draw a cohort, or take the recorded one in a replay."""
    conditions = Conditions(
        **{
            name.removeprefix("given "): value
            for name, value in record.items()
            if name.startswith("given ")
        }
    )
    if "ids" in record:
        cohort = recorder.drawn_again(record, conditions)
    elif "checked in" in record:
        cohort = recorder.sampler.gather(record["checked in"])
    else:
        cohort = recorder.sampler.draw(**conditions._asdict())
    recorder.recent[cohort.round] = replace(cohort, pairs=None)  # pairs refer to [N] numbers
    total = float(cohort.coefficients.sum())
    row = Drawn(cohort.round, 0, len(cohort), float(cohort.budget), total)
    return Done(cohort.round, cohorts.short(cohort, recorder.begun_weights), row, cohort)


def _update(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Learn from norms (`Sampler.update`)."""
    cohort, norms = recorder.open_cohort(round), record["norms"].astype(np.float64)
    state = recorder.sampler.state
    state.rounds.check(cohort)
    state.learning.learn(cohort, norms)
    return _learned(recorder, cohort, norms)


def _finish(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Learn from the norms and sketches of a round that `step` or `begin` ended."""
    cohort, norms = recorder.open_cohort(round), record["norms"].astype(np.float64)
    sketches = record["sketches"].astype(np.float64)
    ended = Ended(cohort, norms, sketches, record["usual"], [])
    recorder.sampler.state.learning.finish(ended)
    return _learned(recorder, cohort, norms, record.get("variance"))


def _learned(
    recorder: Recorder, cohort: Cohort, norms: FloatArray, measured: float | None = None
) -> Done:
    """The row of a round that has ended.

    Args:
        recorder: The recorder.
        cohort: The cohort of the round.
        norms: Its norms, NaN where a client did not answer.
        measured: The variance that was measured from the updates. None means that it is estimated
            from the norms where they suffice.
    """
    recorder.recent.pop(cohort.round, None)
    variance = math.nan if measured is None else measured
    with_pairs = recorder.with_moments(cohort)
    if measured is None and with_pairs.pairs is not None:
        variance = deviation(with_pairs, norms, None).value
    answered = int(np.count_nonzero(~np.isnan(norms)))
    digest = cohorts.digest(norms.astype(np.float32))
    return Done(cohort.round, row=Answered(cohort.round, 0, answered, storable(variance), digest))


def _give_up(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Close a round without learning from it."""
    cohort = recorder.open_cohort(round)
    recorder.sampler.give_up(cohort)
    recorder.recent.pop(cohort.round, None)
    return Done(round)


def _check_in(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Open a round of check-ins."""
    # A round before the last switch was drawn by another policy and is taken as recorded.
    if recorder.sampler.round >= recorder.since:
        recorder.sampler.state.check_in.open()
    return Done()


def _join(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Let clients join, or return."""
    before = _before(recorder, record)
    ids = recorder.sampler.join(record["weights"], record.get("keys"), record.get("cost"))
    return Done(outcome={"ids": ids, **before}, result=ids)


def _leave(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Let clients leave."""
    recorder.sampler.leave(record["keys"])
    return Done()


def _reweigh(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Change the weights of clients."""
    before = _before(recorder, record)
    recorder.sampler.reweigh(record["keys"], record["weights"])
    return Done(outcome=before)


def _before(recorder: Recorder, record: EventRecord) -> EventRecord:
    """The weights and costs of known clients before they return or change their weights.

    A journal whose first rounds were removed needs them: it goes back from a snapshot, change by
    change, to the population of the first round that is left.
    """
    recorder.keep_begun_weights()
    population, cost = recorder.sampler.state.population, recorder.sampler.state.prices.cost
    ids = population.found(record.get("keys", []))
    if (ids < 0).all():
        return {}
    before = {"before": np.where(ids < 0, np.nan, population.raw[ids])}
    if cost is not None:
        before["cost before"] = np.where(ids < 0, np.nan, cost[ids])
    return before


def _in_snapshot(recorder: Recorder, round: int | None, record: EventRecord) -> Done:
    """Do nothing: another kvib or policy took over, and the snapshot of that moment holds it."""
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
    "upgrade": _in_snapshot,
    "switch": _in_snapshot,
}
"""The function of each kind of event."""
