"""An experiment: one TOML file, read into frozen configuration, with errors that name the key."""

import difflib
import importlib
import importlib.util
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import kvib
from kvib.estimators import Coefficients
from kvib.names import POLICIES, PROCEDURES
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
ENGINES = ("auto", "linear", "torch")
PRECISIONS = ("float32", "tf32", "bf16")

Made = TypeVar("Made")


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
    """

    label: str
    policy: str
    procedure: str | None = None
    estimator: str = "unbiased"
    options: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None


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
        engine: `linear`, `torch`, or whichever fits the task.
        precision: of a GPU.
        evaluate_every: rounds between tests; 0 for never.
        train_loss_every: rounds between evaluations of the training loss.
        exact_every: rounds between exact metrics, for which all clients train.
        gpu: whether nobody would wait for it on a CPU.
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

    def __post_init__(self) -> None:
        labels = [sampler.label for sampler in self.samplers]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"samplers: two have the label {label!r}; give each its own")
        for key in ("samplers", "budgets", "seeds"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty; give at least one")
        if self.rounds < 1:
            raise ValueError(f"rounds = {self.rounds} is not a positive number")
        one_of(ENGINES, self.engine, "engine")
        one_of(PRECISIONS, self.precision, "precision")
        one_of(SERVERS, self.server.optimiser, "server.optimiser")
        if not self.task.endswith(".npz"):
            one_of(prepared.TASKS, self.task, "task")
        for run in self.runs():
            run.policy(), run.procedure, run.coefficients, run.local, run.server()

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
        label = "".join(c if c.isalnum() else "-" for c in self.sampler.label.lower())
        return f"{label}_K{self.budget:g}_lr{self.learning_rate:g}_seed{self.seed}"

    def config(self) -> dict[str, Any]:
        """Everything that decides its records, and nothing else."""
        whole = asdict(self.experiment)
        keys = ("task", "rounds", "server", "evaluate_every", "train_loss_every", "exact_every")
        local = {key: whole["local"][key] for key in ("batch_size", "epochs", "prox")}
        sampler = {k: v for k, v in asdict(self.sampler).items() if k not in ("label", "seeds")}
        own = {"budget": self.budget, "learning_rate": self.learning_rate, "seed": self.seed}
        return {**{key: whole[key] for key in keys}, "local": local, "sampler": sampler, **own}

    def policy(self) -> Policy[Any]:
        """A fresh one."""
        made = found(POLICIES, self.sampler.policy, "policy")
        known = [f.name for f in fields(made)]
        options = dict(self.sampler.options)
        for key in options:
            one_of(known, key, f"options of {self.sampler.policy}")
        if "rounds" in known:
            options.setdefault("rounds", self.experiment.rounds)
        policy: Policy[Any] = made(**options)
        return policy

    @property
    def procedure(self) -> Procedure:
        """How clients are drawn."""
        if self.sampler.procedure is None:
            published: Procedure = self.policy().procedure
            return published
        procedure: Procedure = found(PROCEDURES, self.sampler.procedure, "procedure")
        return procedure

    @property
    def coefficients(self) -> Coefficients:
        """How updates are weighted."""
        weighted: Coefficients = found(ESTIMATORS, self.sampler.estimator, "estimator")
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


def read(path: Path, changes: tuple[str, ...] = ()) -> Experiment:
    """An experiment file, with changes such as "rounds=50" or "local.batch_size=10"."""
    try:
        table = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    for change in changes:
        _set(table, change)
    table["samplers"] = [
        {**line, "policy": _beside(path, line.get("policy")), **_estimator(path, line)}
        for line in table.get("samplers", [])
    ]
    try:
        return _fill(Experiment, {"name": path.stem, **table}, "")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def quick(experiment: Experiment) -> Experiment:
    """The same figure in little time: a tenth of the rounds, one seed."""
    samplers = [replace(s, seeds=None) for s in experiment.samplers]
    rounds, seeds = max(experiment.rounds // 10, 10), experiment.seeds[:1]
    return replace(experiment, rounds=rounds, seeds=seeds, samplers=samplers)


def one_of(choices: Any, given: str, key: str) -> None:
    """An error that names the key, the choices, and what was probably meant."""
    if given not in choices:
        near = difflib.get_close_matches(given, list(choices), 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{key}: {given!r} is not one of {', '.join(choices)}{meant}")


def found(table: Mapping[str, Any], name: str, key: str) -> Any:
    """An entry of a table, or what "file.py:name" names."""
    if ":" not in name:
        one_of(table, name, key)
        return table[name]
    file, attribute = name.rsplit(":", 1)
    if not Path(file).exists():
        raise ValueError(f"{key}: there is no file {file}")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{key}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, attribute):
        raise ValueError(f"{key}: {file} has no {attribute}")
    return getattr(module, attribute)


def _beside(path: Path, name: Any) -> Any:
    """Files named in an experiment lie beside it."""
    return str(path.parent / name) if isinstance(name, str) and ":" in name else name


def _estimator(path: Path, line: dict[str, Any]) -> dict[str, Any]:
    return {"estimator": _beside(path, line["estimator"])} if "estimator" in line else {}


def _set(table: dict[str, Any], change: str) -> None:
    key, equals, value = change.partition("=")
    if not equals:
        raise ValueError(f"--set {change}: write it as key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value  # a bare word is a string
    *parents, last = key.strip().split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"--set {change}: {name} has no keys of its own")
    table[last] = parsed


def _fill(cls: Callable[..., Made], table: Any, where: str) -> Made:
    """A frozen configuration from a table; unknown, missing and mistyped keys are named."""
    known: Any = fields(cls)  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    if not isinstance(table, dict):
        raise ValueError(f"{where.rstrip('.')} must be a table, not {table!r}")
    for key in table:
        one_of([f.name for f in known], key, f"{where or 'experiment.'}{key}")
    for f in known:
        if f.name not in table and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{where}{f.name} is missing")
    return cls(**{k: _typed(hints[k], value, f"{where}{k}") for k, value in table.items()})


def _typed(kind: Any, value: Any, key: str) -> Any:
    """The value as a field of this type wants it."""
    if hasattr(kind, "__dataclass_fields__"):
        return _fill(kind, value, f"{key}.")
    if isinstance(kind, UnionType):
        [inner] = [k for k in get_args(kind) if k is not type(None)]
        return _typed(inner, value, key)
    if get_origin(kind) is list:
        [inner] = get_args(kind)
        if not isinstance(value, list):
            raise ValueError(f"{key} must be a list, not {value!r}")
        return [_typed(inner, item, f"{key}[{i}]") for i, item in enumerate(value)]
    wanted = get_origin(kind) or kind
    if wanted is float and type(value) is int:
        value = float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ValueError(f"{key} must be of type {wanted.__name__}, not {value!r}")
    return value
