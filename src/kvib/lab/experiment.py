"""An experiment as frozen configuration: what is compared, on which task, and each of its runs.

Nothing here is built or played, so that an experiment is cheap to read: `parts` builds what a run
names, `rehearsal` tries whether it all goes together.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from kvib.lab import fleet

ADDED = ("memory", "guard", "sketch", "knows_sizes", "response", "availability", "selector")
"""Keys of a sampler that run folders may be older than."""
OWN = ("policy", "selector", "estimator")
"""Keys of a sampler that may name a file of your own."""
OF_SAMPLERS = ("procedure", "memory", "guard", "sketch", "knows_sizes", "response", "availability")
"""Keys that selectors do not have."""


@dataclass(frozen=True)
class SamplerConfig:
    """One line of a figure.

    Args:
        label: its name in figures; no two samplers of an experiment share one.
        policy: one of kvib's, or "file.py:Name" for a policy of your own.
        selector: instead of a policy a rule that chooses without probabilities, or
            "file.py:Name". Its updates are averaged, and its label says that it is biased.
        procedure: how clients are drawn; by default as the policy was published.
        estimator: how updates are weighted, or "file.py:name".
        options: of the policy or selector; `rounds` is the experiment's, if there is a horizon.
        seeds: instead of the experiment's, for samplers that cost too much.
        memory: what to remember of updates: LastUpdates, GroupMeans or LargestEntries; none.
        guard: usual steps that one client's share may reach; none.
        sketch: numbers kept of every client's last update, to balance on.
        knows_sizes: whether it is given the numbers of samples beside the weights.
        response: whether the probability of an answer is `known`, `estimated` or `ignored`.
        availability: the same for the probability of being there.
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
        """The Python files of your own that it names."""
        named = (self.policy, self.estimator, self.selector or "")
        return [Path(name.rsplit(":", 1)[0]) for name in named if ":" in name]


@dataclass(frozen=True)
class LocalConfig:
    """Local training; every learning rate is a run of its own."""

    learning_rates: list[float]
    batch_size: int
    epochs: int = 1
    prox: float = 0.0


@dataclass(frozen=True)
class ServerConfig:
    """The server's step: one of sgd, adam, yogi, and its numbers."""

    optimiser: str = "sgd"
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """All combinations of samplers, budgets, learning rates and seeds on one task.

    Args:
        name: that of its file, or of its table in a file with several; its results bear it.
        title: what it shows.
        task: by name, or a file made by `kvib prepare`.
        rounds: T.
        budgets: values of K.
        seeds: of draws, batches and the first model.
        samplers: what is compared.
        local: how clients train.
        server: how the step is applied.
        engine: `linear`, `torch`, `ray`, or whichever fits the task.
        precision: of a GPU.
        evaluate_every: rounds between tests; 0 for never.
        train_loss_every: rounds between evaluations of the training loss.
        exact_every: rounds between exact metrics, for which all clients train.
        gpu: whether it takes too long on a CPU.
        response: the probability that a drawn client answers, for all or client by client.
        availability: the probability that a client is there when a round is drawn.
        cool_down: rounds that a drawn client waits before it can be drawn again.
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
        """No list is empty, and no two runs share a folder."""
        rates = self.local.learning_rates
        own = {f"samplers[{k}].seeds": s.seeds for k, s in enumerate(self.samplers)}
        lists = {"samplers": self.samplers, "budgets": self.budgets, "seeds": self.seeds}
        for key, given in {**lists, "local.learning_rates": rates, **own}.items():
            if given is not None and not given:
                raise ValueError(f"{key} is empty; give at least one")
        _check_folders("samplers", ((s.label, folder_name(s.label)) for s in self.samplers))
        _check_folders("budgets", ((K, f"{K:g}") for K in self.budgets))
        _check_folders("local.learning_rates", ((rate, f"{rate:g}") for rate in rates))

    def runs(self) -> Iterator["Run"]:
        """Every combination, the quick ones of all samplers before the next seed."""
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
        """The name of its folder."""
        label = folder_name(self.sampler.label)
        return f"{label}_K{self.budget:g}_lr{self.learning_rate:g}_seed{self.seed}"

    def config(self) -> dict[str, Any]:
        """Everything that decides its records, and nothing else."""
        whole = asdict(self.experiment)
        keys = ("task", "rounds", "server", "evaluate_every", "train_loss_every", "exact_every")
        local = {key: whole["local"][key] for key in ("batch_size", "epochs", "prox")}
        sampler = asdict(self.sampler)
        del sampler["label"], sampler["seeds"]
        for key in OWN:  # where one's own file lies differs between machines,
            sampler[key] = sampler[key] and Path(sampler[key]).name
        if self.sampler.files:  # but edited it is another
            sampler["files"] = {file.name: _digest(file) for file in self.sampler.files}
        for key in ADDED:
            if sampler[key] == getattr(SamplerConfig, key):
                del sampler[key]
        own = {"budget": self.budget, "learning_rate": self.learning_rate, "seed": self.seed}
        for key in ("response", "availability", "cool_down"):
            if whole[key] != getattr(Experiment, key):
                own[key] = whole[key]
        return {**{key: whole[key] for key in keys}, "local": local, "sampler": sampler, **own}


def quick(experiment: Experiment) -> Experiment:
    """The same figure in little time: a tenth of the rounds, one seed."""
    samplers = [replace(s, seeds=None) for s in experiment.samplers]
    rounds = min(experiment.rounds, max(experiment.rounds // 10, 10))
    return replace(experiment, rounds=rounds, seeds=experiment.seeds[:1], samplers=samplers)


def folder_name(label: str) -> str:
    """A label as a part of a folder's name."""
    return "".join(c if c.isalnum() else "-" for c in label.lower())


def _digest(file: Path) -> str:
    """What changes when the file is edited."""
    if not file.exists():
        raise ValueError(f"there is no file {file}; put it beside the experiment that names it")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _check_folders(key: str, given: Iterable[tuple[Any, str]]) -> None:
    """Values of one key, each with its part in the name of a run's folder."""
    seen: dict[str, Any] = {}
    for value, part in given:
        if part in seen:
            raise ValueError(
                f"{key}: {seen[part]!r} and {value!r} would have the same run folders; change one"
            )
        seen[part] = value
