"""Builds the objects of a run from the names and numbers of its configuration."""

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
    """A new policy. An option `rounds` that is not given is the experiment's number of rounds."""
    name = run.sampler.policy
    made = found(POLICIES, name, "policy")
    if not _is_policy(made):
        raise ValueError(f"policy: {name} is not a dataclass that extends kvib.Policy")
    fresh: Policy[Any] = _configured(run, made, name)
    return fresh


def rule(run: Run) -> Rule:
    """A new rule of a selector."""
    name = run.sampler.selector or ""
    made = found(RULES, name, "selector")
    if not is_dataclass(made) or not hasattr(made, "choose"):
        raise ValueError(f"selector: {name} is not a dataclass with the methods of kvib's own")
    fresh: Rule = _configured(run, made, name)
    return fresh


def _configured(run: Run, made: Any, name: str) -> Any:
    """The policy or rule `made`, with the options of the sampler."""
    options = dict(run.sampler.options)
    allowed, hints = [f.name for f in fields(made)], get_type_hints(made)
    for key, value in options.items():
        one_of(allowed, key, f"options of {name}")
        typed(hints[key], value, f"options of {name}: {key}")
    if "rounds" in allowed:
        options.setdefault("rounds", run.experiment.rounds)
    try:
        return made(**options)
    except TypeError as error:
        raise ValueError(f"options of {name}: {error}") from error


def _is_policy(made: Any) -> bool:
    """Whether the object is a dataclass that extends `Policy`."""
    return isinstance(made, type) and issubclass(made, Policy) and is_dataclass(made)


def procedure(run: Run) -> Procedure:
    """The procedure of the sampler. By default it is the one the policy was published with."""
    name = run.sampler.procedure
    if name is None:
        published: Procedure = policy(run).procedure
        return published
    one_of(PROCEDURES, name, "procedure")
    return PROCEDURES[name]


def rates(run: Run, sizes: IntArray) -> dict[str, Any]:
    """The true response and availability of clients with these numbers of samples."""
    experiment = run.experiment
    return {
        "response": fleet.rates(experiment.response, sizes),
        "availability": fleet.rates(experiment.availability, sizes),
    }


def chooser(run: Run, weights: FloatArray, sizes: IntArray) -> kvib.Sampler | kvib.Selector:
    """The sampler or selector of a simulation."""
    return sampler(run, weights, sizes) if run.sampler.selector is None else selector(run, weights)


def selector(run: Run, weights: FloatArray) -> kvib.Selector:
    """A new selector of clients with these weights."""
    if run.experiment.cool_down:
        raise ValueError(
            f"cool_down = {run.experiment.cool_down}: selectors know no cool-down; leave it out, "
            "or them"
        )
    return kvib.Selector(rule(run), weights, run.budget, seed=run.seed)


def sampler(run: Run, weights: FloatArray, sizes: IntArray) -> kvib.Sampler:
    """A new sampler of clients with these weights and numbers of samples."""
    config, truth = run.sampler, rates(run, sizes)
    believed: dict[str, Any] = {}  # the rates that the sampler works with
    for key, rate in truth.items():
        word = getattr(config, key)
        one_of(fleet.KNOWLEDGE, word, key)
        believed[key] = fleet.KNOWLEDGE[word](rate)
    return kvib.Sampler(
        policy(run),
        weights,
        run.budget,
        procedure(run),
        seed=run.seed,
        estimator=None if config.memory is None else remembering(config.memory),
        guard=None if config.guard is None else kvib.Guard(config.guard),
        sketch=config.sketch,
        variables=sizes if config.knows_sizes else None,
        cool_down=run.experiment.cool_down,
        **believed,
    )


def remembering(name: str) -> kvib.Difference:
    """The estimator that samples differences to one of kvib's memories."""
    one_of(MEMORIES, name, "memory")
    return kvib.Difference(CONFIGURATIONS[name]())


def coefficients(run: Run) -> Coefficients:
    """The function that weights updates."""
    weighted: Coefficients = found(ESTIMATORS, run.sampler.estimator, "estimator")
    if not callable(weighted):
        raise ValueError(f"estimator: {run.sampler.estimator} is not a function of a cohort")
    return weighted


def local(run: Run) -> LocalSGD:
    """The local training of the clients."""
    config = run.experiment.local
    return LocalSGD(run.learning_rate, config.batch_size, config.epochs, prox=config.prox)


def server(run: Run) -> ServerOptimiser:
    """A new optimiser of the server."""
    config = run.experiment.server
    one_of(SERVERS, config.optimiser, "server.optimiser")
    made: Any = SERVERS[config.optimiser]
    for key in config.options:
        one_of([f.name for f in fields(made)], key, "server.options")
    fresh: ServerOptimiser = made(**config.options)
    return fresh
