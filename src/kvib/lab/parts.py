"""What a run is made of: from the names and numbers of its configuration to objects."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import kvib
from kvib.estimators.streaming import Coefficients
from kvib.lab import fleet
from kvib.lab.configuration import one_of, typed
from kvib.lab.experiment import Run
from kvib.lab.own_code import found
from kvib.names import CONFIGURATIONS, POLICIES, PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.selectors import RULES, Rule
from kvib.sim import LocalSGD, ServerAdam, ServerSGD, ServerYogi
from kvib.sim.server import ServerOptimiser
from kvib.types import FloatArray, IntArray

ESTIMATORS: dict[str, Coefficients] = {
    "unbiased": kvib.unbiased,
    "self_normalised": kvib.self_normalised,
}
SERVERS: dict[str, Callable[..., ServerOptimiser]] = {
    "sgd": ServerSGD,
    "adam": ServerAdam,
    "yogi": ServerYogi,
}
MEMORIES = ("LastUpdates", "GroupMeans", "LargestEntries")


def policy(run: Run) -> Policy[Any]:
    """A fresh policy; `rounds` is the experiment's, if it has a horizon."""
    name = run.sampler.policy
    made = found(POLICIES, name, "policy")
    if not _is_policy(made):
        raise ValueError(f"policy: {name} is not a dataclass that extends kvib.Policy")
    fresh: Policy[Any] = _configured(run, made, name)
    return fresh


def rule(run: Run) -> Rule:
    """The rule of a selector."""
    name = run.sampler.selector or ""
    made = found(RULES, name, "selector")
    if not is_dataclass(made) or not hasattr(made, "choose"):
        raise ValueError(f"selector: {name} is not a dataclass with the methods of kvib's own")
    fresh: Rule = _configured(run, made, name)
    return fresh


def _configured(run: Run, made: Any, name: str) -> Any:
    """A policy or a rule with the options of its sampler."""
    options = dict(run.sampler.options)
    known, hints = [f.name for f in fields(made)], get_type_hints(made)
    for key, value in options.items():
        one_of(known, key, f"options of {name}")
        typed(hints[key], value, f"options of {name}: {key}")
    if "rounds" in known:
        options.setdefault("rounds", run.experiment.rounds)
    try:
        return made(**options)
    except TypeError as error:
        raise ValueError(f"options of {name}: {error}") from error


def _is_policy(made: Any) -> bool:
    return isinstance(made, type) and issubclass(made, Policy) and is_dataclass(made)


def procedure(run: Run) -> Procedure:
    """How clients are drawn: as the policy was published, unless the sampler says otherwise."""
    name = run.sampler.procedure
    if name is None:
        published: Procedure = policy(run).procedure
        return published
    one_of(PROCEDURES, name, "procedure")
    return PROCEDURES[name]


def rates(run: Run, sizes: IntArray) -> dict[str, Any]:
    """How often clients with these numbers of samples answer and are there."""
    given = run.experiment
    return {
        "response": fleet.rates(given.response, sizes),
        "availability": fleet.rates(given.availability, sizes),
    }


def chooser(run: Run, weights: FloatArray, sizes: IntArray) -> kvib.Sampler | kvib.Selector:
    """The sampler or selector that a simulation plays."""
    return sampler(run, weights, sizes) if run.sampler.selector is None else selector(run, weights)


def selector(run: Run, weights: FloatArray) -> kvib.Selector:
    """A fresh selector of clients with these weights."""
    if run.experiment.cool_down:
        raise ValueError(
            f"cool_down = {run.experiment.cool_down}: selectors know no cool-down; leave it out, "
            "or them"
        )
    return kvib.Selector(rule(run), weights, run.budget, seed=run.seed)


def sampler(run: Run, weights: FloatArray, sizes: IntArray) -> kvib.Sampler:
    """A fresh sampler of clients with these weights and numbers of samples."""
    given, truth = run.sampler, rates(run, sizes)
    known: dict[str, Any] = {}
    for key, rate in truth.items():
        word = getattr(given, key)
        one_of(fleet.KNOWLEDGE, word, key)
        known[key] = fleet.KNOWLEDGE[word](rate)
    return kvib.Sampler(
        policy(run),
        weights,
        run.budget,
        procedure(run),
        seed=run.seed,
        estimator=None if given.memory is None else remembering(given.memory),
        guard=None if given.guard is None else kvib.Guard(given.guard),
        sketch=given.sketch,
        variables=sizes if given.knows_sizes else None,
        cool_down=run.experiment.cool_down,
        **known,
    )


def remembering(name: str) -> kvib.Difference:
    """The estimator that samples differences to one of kvib's memories."""
    one_of(MEMORIES, name, "memory")
    return kvib.Difference(CONFIGURATIONS[name]())


def coefficients(run: Run) -> Coefficients:
    """How updates are weighted."""
    weighted: Coefficients = found(ESTIMATORS, run.sampler.estimator, "estimator")
    if not callable(weighted):
        raise ValueError(f"estimator: {run.sampler.estimator} is not a function of a cohort")
    return weighted


def local(run: Run) -> LocalSGD:
    """How clients train."""
    given = run.experiment.local
    return LocalSGD(run.learning_rate, given.batch_size, given.epochs, prox=given.prox)


def server(run: Run) -> ServerOptimiser:
    """How the step is applied."""
    given = run.experiment.server
    one_of(SERVERS, given.optimiser, "server.optimiser")
    made: Any = SERVERS[given.optimiser]
    for key in given.options:
        one_of([f.name for f in fields(made)], key, "server.options")
    fresh: ServerOptimiser = made(**given.options)
    return fresh
