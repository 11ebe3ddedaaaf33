"""Whether an experiment can be played, tried in moments before anything long begins."""

from dataclasses import replace

import numpy as np

from kvib.lab import parts
from kvib.lab.configuration import one_of
from kvib.lab.experiment import Experiment, Run
from kvib.lab.own_code import in_a_line
from kvib.sim import prepared
from kvib.sim.engines.make import NAMES
from kvib.sim.engines.place import PRECISIONS


def rehearse(experiment: Experiment) -> None:
    """Look up every name, build every part, and play two rounds of every sampler.

    The clients are eight made-up ones: no data are read. Python files that the experiment names
    are run.
    """
    try:
        if not experiment.task.endswith(".npz"):
            one_of(prepared.TASKS, experiment.task, "task")
        one_of(NAMES, experiment.engine, "engine")
        one_of(PRECISIONS, experiment.precision, "precision")
        first = next(experiment.runs())
        parts.server(first)
        for rate in experiment.local.learning_rates:
            parts.local(replace(first, learning_rate=rate))
        for sampler in experiment.samplers:
            _try(replace(first, sampler=sampler))
    except ValueError as error:
        raise ValueError(f"{experiment.name}: {error}") from error


def _try(run: Run) -> None:
    """One sampler; what it raises names it."""
    label = run.sampler.label
    caught = Exception if run.sampler.files else ValueError  # your own file may raise anything
    try:
        if run.sampler.selector is None:
            _two_rounds(run)
        else:  # how many candidates a rule takes depends on the task
            parts.rule(run)
    except caught as error:
        reason = error if isinstance(error, ValueError) else in_a_line(error)
        raise ValueError(f"sampler {label!r}: {reason}") from error


def _two_rounds(run: Run) -> None:
    """Two rounds with a few unequal clients: whether all parts of a sampler go together."""
    needs_norms, norms = parts.policy(run).needs_norms, np.arange(1.0, 9.0)
    weighted = parts.coefficients(run)
    sampler = parts.sampler(replace(run, budget=3), norms, np.arange(1, 9))
    for _ in range(2):
        there = None if sampler.state.rates.always else np.arange(len(sampler))
        cohort = sampler.draw(there, norms=norms if needs_norms else None)
        if np.shape(weighted(cohort)) != cohort.ids.shape:
            raise ValueError(f"estimator: {run.sampler.estimator} gives not one number per client")
        sampler.step(cohort, norms[cohort.ids, None], weighted)
