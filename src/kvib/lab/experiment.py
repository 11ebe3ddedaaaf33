"""An experiment: one TOML file, read into frozen configuration, with errors that name the key."""

import hashlib
import importlib.util
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

import kvib
from kvib.cohort import FloatArray, IntArray
from kvib.estimation import Coefficients
from kvib.lab import fleet
from kvib.lab.configuration import change, filled, one_of, typed
from kvib.names import CONFIGURATIONS, POLICIES, PROCEDURES
from kvib.policies import Policy
from kvib.procedures import Procedure
from kvib.sim import LocalSGD, ServerAdam, ServerSGD, ServerYogi, prepared
from kvib.sim.server import ServerOptimiser

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
ENGINES = ("auto", "linear", "torch", "ray")
PRECISIONS = ("float32", "tf32", "bf16")


@dataclass(frozen=True)
class SamplerConfig:
    """One line of a figure.

    Args:
        label: its name in figures; every sampler of an experiment has its own.
        policy: one of kvib's, or "file.py:Name" for a policy of your own.
        procedure: how clients are drawn; by default as the policy was published.
        estimator: how updates are weighted, or "file.py:name".
        options: of the policy; `rounds` is the experiment's, if the policy has a horizon.
        seeds: instead of the experiment's, for samplers that cost too much.
        memory: what to remember of updates: LastUpdates, GroupMeans or LargestEntries; none.
        guard: usual steps that one client's share may reach; none.
        sketch: numbers kept of every client's last update, to balance on.
        knows_sizes: whether the number of samples is told apart from the weights.
        response: whether the probability of an answer is `known`, `estimated` or `ignored`.
        availability: the same of the probability to be there.
    """

    label: str
    policy: str
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

    @property
    def files(self) -> list[Path]:
        """One's own that it names."""
        named = (self.policy, self.estimator)
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
        name: of the file.
        title: what it shows.
        task: by name, or a file made by `kvib prepare`.
        rounds: T.
        budgets: values of K.
        seeds: of draws, batches and the first model.
        samplers: who is compared.
        local: how clients train.
        server: how the step is applied.
        engine: `linear`, `torch`, `ray`, or whichever fits the task.
        precision: of a GPU.
        evaluate_every: rounds between tests; 0 for never.
        train_loss_every: rounds between evaluations of the training loss.
        exact_every: rounds between exact metrics, for which all clients train.
        gpu: whether nobody would wait for it on a CPU.
        response: the probability that a client which was drawn answers, of all or client by client.
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
        one_of(ENGINES, self.engine, "engine")
        one_of(PRECISIONS, self.precision, "precision")
        one_of(SERVERS, self.server.optimiser, "server.optimiser")
        if not self.task.endswith(".npz"):
            one_of(prepared.TASKS, self.task, "task")
        fleet.check(self.response, "response")
        fleet.check(self.availability, "availability")
        first = next(self.runs())
        first.server()
        for rate in self.local.learning_rates:
            _ = replace(first, learning_rate=rate).local
        for sampler in self.samplers:
            caught = Exception if sampler.files else ValueError  # one's own file may raise anything
            try:
                _rehearse(replace(first, sampler=sampler))
            except caught as error:
                reason = error if isinstance(error, ValueError) else told(error)
                raise ValueError(f"sampler {sampler.label!r}: {reason}") from error

    @property
    def elsewhere(self) -> bool:
        """Whether clients train on a cluster, not in this process and on its device."""
        return self.engine == "ray"

    def _check_lists(self) -> None:
        """None is empty, and no two runs have one folder."""
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
    """One combination."""

    experiment: Experiment
    sampler: SamplerConfig
    budget: float
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        label = folder_name(self.sampler.label)
        return f"{label}_K{self.budget:g}_lr{self.learning_rate:g}_seed{self.seed}"

    def config(self) -> dict[str, Any]:
        """Everything that decides its records, and nothing else."""
        whole = asdict(self.experiment)
        keys = ("task", "rounds", "server", "evaluate_every", "train_loss_every", "exact_every")
        local = {key: whole["local"][key] for key in ("batch_size", "epochs", "prox")}
        sampler = asdict(self.sampler)
        del sampler["label"], sampler["seeds"]
        for key in ("policy", "estimator"):  # where one's own file lies differs between machines,
            sampler[key] = Path(sampler[key]).name
        if self.sampler.files:  # but edited it is another
            sampler["files"] = {file.name: _digest(file) for file in self.sampler.files}
        # Run folders may be older than some keys, and say nothing of them.
        for key in ("memory", "guard", "sketch", "knows_sizes", "response", "availability"):
            if sampler[key] == getattr(SamplerConfig, key):
                del sampler[key]
        own = {"budget": self.budget, "learning_rate": self.learning_rate, "seed": self.seed}
        for key in ("response", "availability", "cool_down"):
            if whole[key] != getattr(Experiment, key):
                own[key] = whole[key]
        return {**{key: whole[key] for key in keys}, "local": local, "sampler": sampler, **own}

    def policy(self) -> Policy[Any]:
        """A fresh one."""
        name, options = self.sampler.policy, dict(self.sampler.options)
        made = found(POLICIES, name, "policy")
        if not _is_policy(made):
            raise ValueError(f"policy: {name} is not a dataclass that extends kvib.Policy")
        known, hints = [f.name for f in fields(made)], get_type_hints(made)
        for key, value in options.items():
            one_of(known, key, f"options of {name}")
            typed(hints[key], value, f"options of {name}: {key}")
        if "rounds" in known:
            options.setdefault("rounds", self.experiment.rounds)
        try:
            policy: Policy[Any] = made(**options)
        except TypeError as error:
            raise ValueError(f"options of {name}: {error}") from error
        return policy

    @property
    def procedure(self) -> Procedure:
        """How clients are drawn."""
        name = self.sampler.procedure
        if name is None:
            published: Procedure = self.policy().procedure
            return published
        one_of(PROCEDURES, name, "procedure")
        return PROCEDURES[name]

    def rates(self, sizes: IntArray) -> dict[str, Any]:
        """How often clients with these numbers of samples answer and are there."""
        given = self.experiment
        return {
            "response": fleet.rates(given.response, sizes),
            "availability": fleet.rates(given.availability, sizes),
        }

    def sampler_of(self, weights: FloatArray, sizes: IntArray) -> kvib.Sampler:
        """For clients with these weights and numbers of samples."""
        given, truth = self.sampler, self.rates(sizes)
        known: dict[str, Any] = {}
        for key, rate in truth.items():
            word = getattr(given, key)
            one_of(fleet.KNOWLEDGE, word, key)
            known[key] = fleet.KNOWLEDGE[word](rate)
        return kvib.Sampler(
            self.policy(),
            weights,
            self.budget,
            self.procedure,
            seed=self.seed,
            estimator=None if given.memory is None else remembering(given.memory),
            guard=None if given.guard is None else kvib.Guard(given.guard),
            sketch=given.sketch,
            variables=sizes if given.knows_sizes else None,
            cool_down=self.experiment.cool_down,
            **known,
        )

    @property
    def coefficients(self) -> Coefficients:
        """How updates are weighted."""
        weighted: Coefficients = found(ESTIMATORS, self.sampler.estimator, "estimator")
        if not callable(weighted):
            raise ValueError(f"estimator: {self.sampler.estimator} is not a function of a cohort")
        return weighted

    @property
    def local(self) -> LocalSGD:
        """How clients train."""
        local = self.experiment.local
        return LocalSGD(self.learning_rate, local.batch_size, local.epochs, prox=local.prox)

    def server(self) -> ServerOptimiser:
        """How the step is applied."""
        given = self.experiment.server
        made: Any = SERVERS[given.optimiser]
        for key in given.options:
            one_of([f.name for f in fields(made)], key, "server.options")
        server: ServerOptimiser = made(**given.options)
        return server


def remembering(name: str) -> kvib.Difference:
    """With a memory of kvib's."""
    one_of(MEMORIES, name, "memory")
    return kvib.Difference(CONFIGURATIONS[name]())


def folder_name(label: str) -> str:
    """A label as a part of a folder's name."""
    return "".join(c if c.isalnum() else "-" for c in label.lower())


def _digest(file: Path) -> str:
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


def _is_policy(made: Any) -> bool:
    return isinstance(made, type) and issubclass(made, Policy) and is_dataclass(made)


def _rehearse(run: Run) -> None:
    """Two rounds with a few unequal clients: whether all parts of a sampler go together."""
    policy, norms, weighted = run.policy(), np.arange(1.0, 9.0), run.coefficients
    sampler = replace(run, budget=3).sampler_of(norms, np.arange(1, 9))
    for _ in range(2):
        there = None if sampler.reach.always else np.arange(len(sampler))
        cohort = sampler.draw(there, norms=norms if policy.needs_norms else None)
        if np.shape(weighted(cohort)) != cohort.ids.shape:
            raise ValueError(f"estimator: {run.sampler.estimator} gives not one number per client")
        sampler.step(cohort, norms[cohort.ids, None], weighted)


def read(path: Path, changes: tuple[str, ...] = ()) -> Experiment:
    """An experiment file, with changes such as "rounds=50" or "local.batch_size=10"."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"no experiment file {path} ({error.strerror}); see kvib list") from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    for words in changes:
        change(table, words)
    _look_beside(path, table.get("samplers"))
    try:
        return filled(Experiment, {"name": path.stem, **table})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _look_beside(path: Path, samplers: Any) -> None:
    """Files named in an experiment lie beside it."""
    lines = samplers if isinstance(samplers, list) else []
    for line in (line for line in lines if isinstance(line, dict)):
        for key in ("policy", "estimator"):
            name = line.get(key)
            if isinstance(name, str) and ":" in name:
                line[key] = str(path.parent / name)


def quick(experiment: Experiment) -> Experiment:
    """The same figure in little time: a tenth of the rounds, one seed."""
    samplers = [replace(s, seeds=None) for s in experiment.samplers]
    rounds = min(experiment.rounds, max(experiment.rounds // 10, 10))
    return replace(experiment, rounds=rounds, seeds=experiment.seeds[:1], samplers=samplers)


def found(table: Mapping[str, Any], name: str, key: str) -> Any:
    """An entry of a table, or what "file.py:name" names."""
    if ":" not in name:
        one_of(table, name, key)
        return table[name]
    file, attribute = name.rsplit(":", 1)
    if not Path(file).exists():
        raise ValueError(f"{key}: there is no file {file}")
    spec = importlib.util.spec_from_file_location(f"kvib.own.{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{key}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{key}: {file} cannot be imported: {told(error)}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{key}: {file} has no {attribute}")
    return getattr(module, attribute)


def told(error: Exception) -> str:
    """What somebody else's code raised, as one line."""
    return f"{type(error).__name__}: {error}"
