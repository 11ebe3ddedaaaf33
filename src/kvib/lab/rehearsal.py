"""Tries in moments whether an experiment can run, before the long work begins."""

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
    """Look up every name, build every part, and run two rounds of every sampler.

    The rounds draw from eight made-up clients, so no data are read. Python files that the
    experiment names are executed.
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
    """Try one sampler. Its errors begin with its label."""
    label = run.sampler.label
    caught = Exception if run.sampler.files else ValueError  # a user's file may raise anything
    try:
        if run.sampler.selector is None:
            _two_rounds(run)
        else:  # the number of candidates of a rule depends on the task, so no rounds are run
            parts.rule(run)
    except caught as error:
        reason = error if isinstance(error, ValueError) else in_a_line(error)
        raise ValueError(f"sampler {label!r}: {reason}") from error


def _two_rounds(run: Run) -> None:
    """Run two rounds with eight unequal clients, which shows whether the parts work together."""
    needs_norms, norms = parts.policy(run).needs_norms, np.arange(1.0, 9.0)
    weighted = parts.coefficients(run)
    sampler = parts.sampler(replace(run, budget=3), norms, np.arange(1, 9))
    for _ in range(2):
        available = None if sampler.state.rates.always else np.arange(len(sampler))
        cohort = sampler.draw(available, norms=norms if needs_norms else None)
        if np.shape(weighted(cohort)) != cohort.ids.shape:
            raise ValueError(f"estimator: {run.sampler.estimator} gives not one number per client")
        sampler.step(cohort, norms[cohort.ids, None], weighted)
