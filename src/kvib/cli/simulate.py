"""`kvib prepare` and `kvib simulate`: one task as a file, and one run of the simulator."""

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
"""The policy of `kvib simulate` where neither `--policy` nor `--selector` is given."""


def prepare(
    task: Annotated[str, typer.Argument(help=f"Task: one of {', '.join(prepared.TASKS)}.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write (default: TASK.npz in this folder).")
    ] = None,
) -> None:
    """Write a task as one small file, for a machine without data or network."""
    path = out or Path(f"{task}.npz")
    made = prepared.TASKS[task]() if task in prepared.TASKS else prepared.make_task(task)
    path.parent.mkdir(parents=True, exist_ok=True)
    prepared.prepare(made, path)
    size = path.stat().st_size / 1e6
    say(f"{path}: {made.name}, {len(made)} clients, {size:.1f} MB")


def simulate(
    task: Annotated[
        str, typer.Argument(help="Name of a task, or a file written by `kvib prepare`.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run. A run found there continues.")],
    policy: Annotated[
        str,
        typer.Option(
            help=f"Policy: {', '.join(POLICIES)}, with options as in KVib(rounds=500), "
            "or recommended."
        ),
    ] = POLICY,
    procedure: Annotated[
        str | None,
        typer.Option(
            help=f"Procedure of the draws: {', '.join(PROCEDURES)} (default: the policy's own)."
        ),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(help=f"Biased selector instead of a policy: {', '.join(RULES)}."),
    ] = None,
    budget: Annotated[float, typer.Option(help="Clients per round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds in all.")] = 500,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of local SGD.")] = 0.02,
    batch_size: Annotated[int, typer.Option(help="Batch size of local SGD.")] = 64,
    epochs: Annotated[int, typer.Option(help="Epochs of local SGD in a round.")] = 1,
    exact_every: Annotated[
        int, typer.Option(help="Rounds between exact metrics (0: no exact metrics).")
    ] = 0,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between tests (0: no tests).")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of draws, batches and the first model.")] = 0,
    response: Annotated[float, typer.Option(help="Probability that a drawn client answers.")] = 1.0,
    availability: Annotated[
        float, typer.Option(help="Probability that a client is available.")
    ] = 1.0,
    cool_down: Annotated[
        int, typer.Option(help="Rounds that a drawn client waits before it can be drawn again.")
    ] = 0,
    device: Annotated[
        str | None,
        typer.Option(help="Device of torch: cpu, cuda, … (default: compiled code if possible)."),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Precision on a GPU: float32, tf32 or bf16.")
    ] = "float32",
    stop_after: Annotated[
        float,
        typer.Option(help="Seconds after which to save and stop. Repeat the command to continue."),
    ] = math.inf,
    engine: Annotated[
        str, typer.Option(help=f"Engine that trains the clients: {', '.join(NAMES)}.")
    ] = "auto",
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster (default: RAY_ADDRESS, or one started here)."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of Ray actors (default: as many as fit).")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(help="Seconds that a Ray actor may work (default: no limit)."),
    ] = None,
    chunk_bytes: Annotated[
        float,
        typer.Option(
            "--chunk-bytes", "--memory", help="Bytes for clients that are trained together."
        ),
    ] = 16e9,
    csv: Annotated[
        Path | None, typer.Option(help="CSV file for the records of all rounds (default: none).")
    ] = None,
) -> None:
    """Simulate federated rounds. Repeat the command to continue a stopped or killed run."""
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
    made_task = prepared.make_task(task)
    local = LocalSGD(learning_rate, batch_size, epochs)
    rates: dict[str, Any] = {"response": response, "availability": availability}
    if selector is None:
        how = None if procedure is None else chosen(PROCEDURES, procedure, "procedure")
        options = {**rates, "cool_down": cool_down}
        sampler: Any = make_sampler(policy, made_task.weights, budget, how, seed, **options)
    else:
        _refuse_beside_selector(policy=policy, procedure=procedure, cool_down=cool_down)
        rule = made(RULES, selector, "selector")
        sampler = kvib.Selector(rule, made_task.weights, budget, seed=seed)
    simulation = Simulation(
        made_task,
        make_engine(name, made_task, local, place),
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
    """Raise ValueError if an option is below the minimum."""
    for option, value in options.items():
        if value < minimum:
            raise ValueError(f"{option} {value}: give at least {minimum}")


def positive(options: dict[str, float]) -> None:
    """Raise ValueError unless all options are above 0."""
    for option, value in options.items():
        if not value > 0:
            raise ValueError(f"{option} {value:g}: give a positive number")


def _refuse_beside_selector(policy: str, procedure: str | None, cool_down: int) -> None:
    """Raise ValueError if an option that only samplers have stands beside `--selector`."""
    is_set = {
        "--policy": policy != POLICY,
        "--procedure": procedure is not None,
        "--cool-down": cool_down != 0,
    }
    for option in (option for option, value in is_set.items() if value):
        raise ValueError(
            f"{option} is of samplers, which draw by probabilities; leave it out, or --selector"
        )


def end(simulation: Simulation, rounds: int, out: Path, csv: Path | None, stopped: bool) -> None:
    """Write the records, and print how far the run came and whether it is biased.

    A folder with more rounds than `--rounds` is an error.
    """
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
    say(how_far + (", finished" if done == rounds else ", stopped; repeat the command to continue"))


def make_sampler(
    policy: str,
    weights: Any,
    budget: float,
    procedure: kvib.Procedure | None,
    seed: int,
    **options: Any,
) -> kvib.Sampler:
    """A sampler of the named policy, such as "KVib(rounds=500)", or the recommended one."""
    if policy.lower() == "recommended":
        how = kvib.balanced if procedure is None else procedure
        options |= {"seed": seed, "procedure": how}
        return kvib.recommended(weights, budget, journal=None, **options)
    return kvib.Sampler(named_policy(policy), weights, budget, procedure, seed=seed, **options)


def play(simulation: Simulation, rounds: int, out: Path, stop_after: float) -> bool:
    """Run the simulation to the end or to `stop_after`. Returns whether Ctrl-C stopped it."""
    with interruptible() as stop, counted(str(out), rounds) as tell:
        for record in simulation.run(rounds, out, stop_after=stop_after):
            tell(record.round + 1, f", loss {last_loss(simulation):.4f}")
            if stop():
                simulation.save(out / "checkpoint.npz")
                break
        return stop()


def last_loss(simulation: Simulation) -> float:
    """The last loss that was measured on the test data, NaN if there is none."""
    found = (r.loss for r in reversed(simulation.records) if not math.isnan(r.loss))
    return next(found, math.nan)
