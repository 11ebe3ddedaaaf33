"""The line below a figure that says where its results are from."""

from typing import Any

from kvib.lab.tables import Results


def of_runs(results: Results) -> str:
    """The origin of results in a line, then the names of missing and diverged runs."""
    runs, experiment = results.about["runs"], results.experiment
    starts = [start for run in runs.values() for start in (run, *run.get("later", ()))]
    devices, commits = (
        ", ".join(sorted({start[key] or "unknown" for start in starts}))
        for key in ("device", "commit")
    )
    minutes = sum(run["seconds"] for run in runs.values()) / 60
    local, rates = (
        experiment["local"],
        [f"{rate:g}" for rate in experiment["local"]["learning_rates"]],
    )
    line = (
        f"\n`{experiment['name']}`: {len(runs)} runs of {experiment['rounds']} rounds, "
        f"local learning rate {', '.join(rates)}, batch {local['batch_size']}, "
        f"{local['epochs']} epochs; added up {minutes:.0f} minutes, on {devices}, at commit "
        f"{commits}.\n"
    )
    if results.about["missing"]:
        line += f"\nNot finished yet: {', '.join(results.about['missing'])}.\n"
    diverged = [name for name, run in runs.items() if run["diverged"]]
    if diverged:
        line += f"\nDiverged: {', '.join(diverged)}.\n"
    return line + note(results.about)


def note(about: dict[str, Any]) -> str:
    """The note in a file of results on how they differ from what a run would give now.

    Notes are written by hand, so a file that is made again has none.
    """
    return f"\nNote: {about['note']}\n" if "note" in about else ""
