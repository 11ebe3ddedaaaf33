"""`kvib prepare` and `kvib simulate`: one task, one run."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

import kvib
from kvib.cli.interrupt import interruptible, leave
from kvib.cli.places import check_file, check_folder
from kvib.cli.screen import counted, say
from kvib.names import POLICIES, PROCEDURES, chosen, made
from kvib.names import policy as named_policy
from kvib.selectors import RULES
from kvib.sim import LocalSGD, Simulation, prepared
from kvib.sim.engines.make import NAMES, check_engine, make_engine
from kvib.sim.engines.place import Place
from kvib.sim.records import write_csv

POLICY = "KVib"
"""Unless another one is asked for."""


def prepare(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(prepared.TASKS)}.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; TASK.npz here.")] = None,
) -> None:
    """Write what a task needs as one small file, for a machine without data or network."""
    path = out or Path(f"{task}.npz")
    made = prepared.TASKS[task]() if task in prepared.TASKS else prepared.make_task(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    prepared.prepare(made, path)
    size = path.stat().st_size / 1e6
    say(f"{path}: {made.name}, {len(made)} clients, {size:.1f} MB")


def simulate(
    task: Annotated[str, typer.Argument(help="A task by name, or a file made by `kvib prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; a run found there goes on.")],
    policy: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(POLICIES)}, as KVib(rounds=500); or recommended."),
    ] = POLICY,
    procedure: Annotated[str | None, typer.Option(help=f"{', '.join(PROCEDURES)}.")] = None,
    selector: Annotated[
        str | None,
        typer.Option(help=f"Instead of a policy, biased: {', '.join(RULES)}."),
    ] = None,
    budget: Annotated[float, typer.Option(help="Clients per round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds in all.")] = 500,
    learning_rate: Annotated[float, typer.Option(help="Of local SGD.")] = 0.02,
    batch_size: Annotated[int, typer.Option(help="Of local SGD.")] = 64,
    epochs: Annotated[int, typer.Option(help="Of local SGD.")] = 1,
    exact_every: Annotated[int, typer.Option(help="Rounds between exact metrics; 0: none.")] = 0,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between tests.")] = 1,
    seed: Annotated[int, typer.Option(help="Of draws, batches and the first model.")] = 0,
    response: Annotated[float, typer.Option(help="Probability that the drawn answer.")] = 1.0,
    availability: Annotated[float, typer.Option(help="Probability that clients are there.")] = 1.0,
    cool_down: Annotated[int, typer.Option(help="Rounds that the drawn wait.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; none: compiled.")] = None,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16 on a GPU.")] = "float32",
    stop_after: Annotated[float, typer.Option(help="Seconds; then save and stop.")] = math.inf,
    engine: Annotated[str, typer.Option(help=f"{', '.join(NAMES)}.")] = "auto",
    address: Annotated[str | None, typer.Option(help="Of the cluster; none: one here.")] = None,
    workers: Annotated[int | None, typer.Option(help="Ray actors; none: as many as fit.")] = None,
    patience: Annotated[float | None, typer.Option(help="Seconds for a Ray actor's work.")] = None,
    chunk_bytes: Annotated[
        float, typer.Option("--chunk-bytes", "--memory", help="Bytes for clients trained together.")
    ] = 16e9,
    csv: Annotated[Path | None, typer.Option(help="Write the records of all rounds here.")] = None,
) -> None:
    """Simulate federated rounds; killed or stopped, it goes on where it was."""
    at_least({"--rounds": rounds}, 1)
    at_least({"--evaluate-every": evaluate_every, "--exact-every": exact_every}, 0)
    positive({"--stop-after": stop_after, "--chunk-bytes": chunk_bytes})
    check_folder(out, "--out")
    check_file(csv, "--csv")
    place = Place(
        device=device,
        precision=precision,
        chunk_bytes=chunk_bytes,
        address=address,
        workers=workers,
        patience=patience,
    )
    name = str(chosen({name: name for name in NAMES}, engine, "engine"))
    check_engine(name, place)
    given = prepared.make_task(task)
    local = LocalSGD(learning_rate, batch_size, epochs)
    rates: dict[str, Any] = {"response": response, "availability": availability}
    if selector is None:
        how = None if procedure is None else chosen(PROCEDURES, procedure, "procedure")
        options = {**rates, "cool_down": cool_down}
        sampler: Any = make_sampler(policy, given.weights, budget, how, seed, **options)
    else:
        _refuse_beside_selector(policy=policy, procedure=procedure, cool_down=cool_down)
        sampler = kvib.Selector(made(RULES, selector, "selector"), given.weights, budget, seed=seed)
    simulation = Simulation(
        given,
        make_engine(name, given, local, place),
        sampler,
        local,
        evaluate_every=evaluate_every,
        exact_every=exact_every,
        seed=seed,
        **rates,
    )
    stopped = play(simulation, rounds, out, stop_after)
    end(simulation, rounds, out, csv, stopped)


def at_least(options: dict[str, int], minimum: int) -> None:
    """Check that no option is below the minimum."""
    for option, given in options.items():
        if given < minimum:
            raise ValueError(f"{option} {given}: give at least {minimum}")


def positive(options: dict[str, float]) -> None:
    """Check that all options are above 0."""
    for option, given in options.items():
        if not given > 0:
            raise ValueError(f"{option} {given:g}: give a positive number")


def _refuse_beside_selector(policy: str, procedure: str | None, cool_down: int) -> None:
    """What belongs to samplers only."""
    given = {
        "--policy": policy != POLICY,
        "--procedure": procedure is not None,
        "--cool-down": cool_down != 0,
    }
    for option in (option for option, there in given.items() if there):
        raise ValueError(
            f"{option} is of samplers, which draw by probabilities; leave it out, or --selector"
        )


def end(simulation: Simulation, rounds: int, out: Path, csv: Path | None, stopped: bool) -> None:
    """Write the records, say how far it came and whether it is biased; an error where the folder
    held more rounds."""
    done = len(simulation.records)
    if done > rounds:
        raise ValueError(
            f"{out} holds {done} rounds already: give --rounds {done} or more, or another --out"
        )
    if csv is not None:
        write_csv(csv, simulation.records)
    how_far = f"{out}: {done} of {rounds} rounds, last test loss {last_loss(simulation):.4f}"
    if simulation.guarantee == "biased":
        how_far += ", biased"
    if stopped and done < rounds:
        leave(how_far)
    say(how_far + (", finished" if done == rounds else ", stopped; the same command goes on"))


def make_sampler(
    policy: str,
    weights: Any,
    budget: float,
    procedure: kvib.Procedure | None,
    seed: int,
    **options: Any,
) -> kvib.Sampler:
    """With a policy as its repr says it, or the recommended combination."""
    if policy.lower() == "recommended":
        how = kvib.balanced if procedure is None else procedure
        options |= {"seed": seed, "procedure": how}
        return kvib.recommended(weights, budget, journal=None, **options)
    return kvib.Sampler(named_policy(policy), weights, budget, procedure, seed=seed, **options)


def play(simulation: Simulation, rounds: int, out: Path, stop_after: float) -> bool:
    """To the end or to `stop_after`, telling how far it is; whether Ctrl-C stopped it."""
    with interruptible() as stop, counted(str(out), rounds) as tell:
        for record in simulation.run(rounds, out, stop_after=stop_after):
            tell(record.round + 1, f", loss {last_loss(simulation):.4f}")
            if stop():
                simulation.save(out / "checkpoint.npz")
                break
        return stop()


def last_loss(simulation: Simulation) -> float:
    """On the test data."""
    found = (r.loss for r in reversed(simulation.records) if not math.isnan(r.loss))
    return next(found, math.nan)
