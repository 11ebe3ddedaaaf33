"""An experiment as frozen configuration: the samplers that it compares, the task and the runs.

Nothing is built here, so reading an experiment is cheap. `parts` builds the objects that a run
names, and `rehearsal` tries whether they work together.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from kvib.lab import fleet

ADDED = ("memory", "guard", "sketch", "knows_sizes", "response", "availability", "selector")
"""Keys of a sampler that were added later: older run folders do not have them."""
OWN = ("policy", "selector", "estimator")
"""Keys of a sampler that may name a Python file of the user."""
OF_SAMPLERS = ("procedure", "memory", "guard", "sketch", "knows_sizes", "response", "availability")
"""Keys that samplers have and selectors do not have."""


@dataclass(frozen=True)
class SamplerConfig:
    """One sampler of an experiment: one line of its figure.

    Args:
        label: The name in figures. No two samplers of an experiment share one.
        policy: The name of a policy of kvib, or "file.py:Name" for a policy of your own.
        procedure: The procedure that draws the clients. None means the one that the policy was
            published with.
        estimator: The name of the function that weights updates, or "file.py:name".
        options: Options of the policy or selector. An option `rounds` that is not given here is
            the experiment's number of rounds.
        seeds: Seeds to use instead of the experiment's, for a sampler that costs too much.
        memory: The memory of updates: LastUpdates, GroupMeans or LargestEntries. None means no
            memory.
        guard: The number of typical steps that one client's share may reach. None means no bound.
        sketch: The count of numbers kept of every client's last update, to balance on.
        knows_sizes: Whether the sampler is given the numbers of samples beside the weights.
        response: Whether the probability of an answer is `known`, `estimated` or `ignored`.
        availability: Whether the probability of being available is `known`, `estimated` or
            `ignored`.
        selector: The name of a rule that chooses without probabilities, instead of a policy, or
            "file.py:Name". Its updates are averaged, and its label says that it is biased.
    """

    label: str
    policy: str = ""
    procedure: str | None = None
    estimator: str = "unbiased"
    options: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None
    memory: str | None = None
    guard: float | None = None
    sketch: int = 0
    knows_sizes: bool = False
    response: str = "known"
    availability: str = "known"
    selector: str | None = None

    def __post_init__(self) -> None:
        if (self.selector is None) == (not self.policy):
            raise ValueError(f"sampler {self.label!r}: give it a policy or a selector")
        if self.selector is None:
            return
        for key in OF_SAMPLERS:
            if getattr(self, key) != getattr(SamplerConfig, key):
                raise ValueError(
                    f"sampler {self.label!r}: {key} is of samplers, which draw by probabilities; "
                    "a selector has none, so leave it out"
                )
        if self.estimator == SamplerConfig.estimator:
            object.__setattr__(self, "estimator", "self_normalised")
        if "biased" not in self.label:
            object.__setattr__(self, "label", f"{self.label} (biased)")

    @property
    def files(self) -> list[Path]:
        """The Python files of the user that the sampler names."""
        named = (self.policy, self.estimator, self.selector or "")
        return [Path(name.rsplit(":", 1)[0]) for name in named if ":" in name]


@dataclass(frozen=True)
class LocalConfig:
    """Local training of the clients. Every learning rate is a run of its own.

    Args:
        learning_rates: The learning rates of local SGD.
        batch_size: The batch size of local SGD.
        epochs: The number of epochs of local SGD in a round.
        prox: The strength of the pull towards the global model (FedProx).
    """

    learning_rates: list[float]
    batch_size: int
    epochs: int = 1
    prox: float = 0.0


@dataclass(frozen=True)
class ServerConfig:
    """The server's step.

    Args:
        optimiser: The optimiser: sgd, adam or yogi.
        options: The options of the optimiser, such as its learning rate.
    """

    optimiser: str = "sgd"
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """All combinations of samplers, budgets, learning rates and seeds on one task.

    Args:
        name: The name of the file, or of the variant in a file with several. Results have the
            same name.
        title: The title of the figure.
        task: The name of a task, or a file made by `kvib prepare`.
        rounds: The number of rounds T.
        budgets: The values of the budget K.
        seeds: The seeds of draws, batches and the first model.
        samplers: The samplers to compare.
        local: The local training of the clients.
        server: The server's step.
        engine: The engine: `linear`, `torch`, `ray`, or `auto` for the one that fits the task.
        precision: The precision on a GPU.
        evaluate_every: The number of rounds between tests. 0 means never.
        train_loss_every: The number of rounds between evaluations of the training loss. 0 means
            never.
        exact_every: The number of rounds between exact metrics, for which all clients train. 0
            means never.
        gpu: Whether the experiment takes too long on a CPU.
        response: The probability that a drawn client answers, for all or client by client.
        availability: The probability that a client is available before the draw, for all or client
            by client.
        cool_down: The number of rounds that a drawn client waits before it can be drawn again.
    """

    name: str
    title: str
    task: str
    rounds: int
    budgets: list[float]
    seeds: list[int]
    samplers: list[SamplerConfig]
    local: LocalConfig
    server: ServerConfig = ServerConfig()
    engine: str = "auto"
    precision: str = "float32"
    evaluate_every: int = 1
    train_loss_every: int = 0
    exact_every: int = 0
    gpu: bool = False
    response: fleet.Rate = 1.0
    availability: fleet.Rate = 1.0
    cool_down: int = 0

    def __post_init__(self) -> None:
        self._check_lists()
        if self.rounds < 1:
            raise ValueError(f"rounds = {self.rounds} is not a positive number")
        fleet.check(self.response, "response")
        fleet.check(self.availability, "availability")

    def _check_lists(self) -> None:
        """Raise ValueError if a list is empty or two runs would share a folder."""
        rates = self.local.learning_rates
        own = {f"samplers[{k}].seeds": s.seeds for k, s in enumerate(self.samplers)}
        lists = {"samplers": self.samplers, "budgets": self.budgets, "seeds": self.seeds}
        for key, values in {**lists, "local.learning_rates": rates, **own}.items():
            if values is not None and not values:
                raise ValueError(f"{key} is empty; give at least one")
        _check_folders("samplers", ((s.label, folder_name(s.label)) for s in self.samplers))
        _check_folders("budgets", ((K, f"{K:g}") for K in self.budgets))
        _check_folders("local.learning_rates", ((rate, f"{rate:g}") for rate in rates))

    def runs(self) -> Iterator["Run"]:
        """Yield every combination. One seed of all samplers comes before the next seed."""
        seeds = sorted({seed for s in self.samplers for seed in s.seeds or self.seeds})
        grid = product(seeds, self.budgets, self.local.learning_rates, self.samplers)
        for seed, budget, rate, sampler in grid:
            if seed in (self.seeds if sampler.seeds is None else sampler.seeds):
                yield Run(self, sampler, budget, rate, seed)


@dataclass(frozen=True)
class Run:
    """One combination: a sampler with a budget, a learning rate and a seed."""

    experiment: Experiment
    sampler: SamplerConfig
    budget: float
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        label = folder_name(self.sampler.label)
        return f"{label}_K{self.budget:g}_lr{self.learning_rate:g}_seed{self.seed}"

    def config(self) -> dict[str, Any]:
        """The settings that decide the records of the run, and no others."""
        whole = asdict(self.experiment)
        keys = ("task", "rounds", "server", "evaluate_every", "train_loss_every", "exact_every")
        local = {key: whole["local"][key] for key in ("batch_size", "epochs", "prox")}
        sampler = asdict(self.sampler)
        del sampler["label"], sampler["seeds"]
        for key in OWN:  # the folder of a user's file differs between machines
            sampler[key] = sampler[key] and Path(sampler[key]).name
        if self.sampler.files:  # an edited file makes another run
            sampler["files"] = {file.name: _digest(file) for file in self.sampler.files}
        for key in ADDED:  # a default is left out, as in folders older than the key
            if sampler[key] == getattr(SamplerConfig, key):
                del sampler[key]
        own = {"budget": self.budget, "learning_rate": self.learning_rate, "seed": self.seed}
        for key in ("response", "availability", "cool_down"):
            if whole[key] != getattr(Experiment, key):
                own[key] = whole[key]
        return {**{key: whole[key] for key in keys}, "local": local, "sampler": sampler, **own}


def quick(experiment: Experiment) -> Experiment:
    """The experiment with a tenth of the rounds, at least ten, and one seed."""
    samplers = [replace(s, seeds=None) for s in experiment.samplers]
    rounds = min(experiment.rounds, max(experiment.rounds // 10, 10))
    return replace(experiment, rounds=rounds, seeds=experiment.seeds[:1], samplers=samplers)


def folder_name(label: str) -> str:
    """The label of a sampler as part of a folder's name."""
    return "".join(c if c.isalnum() else "-" for c in label.lower())


def _digest(file: Path) -> str:
    """A hash of the file's content."""
    if not file.exists():
        raise ValueError(f"there is no file {file}; put it beside the experiment that names it")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _check_folders(key: str, pairs: Iterable[tuple[Any, str]]) -> None:
    """Raise ValueError if two values of a key have the same part in the names of run folders."""
    seen: dict[str, Any] = {}
    for value, part in pairs:
        if part in seen:
            raise ValueError(
                f"{key}: {seen[part]!r} and {value!r} would have the same run folders; change one"
            )
        seen[part] = value
