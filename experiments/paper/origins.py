"""Where results are from, in a line below their figure."""

from typing import Any

from kvib.lab.tables import Results


def of_runs(results: Results) -> str:
    """Where they are from, in a line; runs that are missing or diverged, by name."""
    runs, given = results.about["runs"], results.experiment
    starts = [start for run in runs.values() for start in (run, *run.get("later", ()))]
    devices, commits = (
        ", ".join(sorted({start[key] or "unknown" for start in starts}))
        for key in ("device", "commit")
    )
    minutes = sum(run["seconds"] for run in runs.values()) / 60
    local, rates = given["local"], [f"{rate:g}" for rate in given["local"]["learning_rates"]]
    line = (
        f"\n`{given['name']}`: {len(runs)} runs of {given['rounds']} rounds, "
        f"local learning rate {', '.join(rates)}, batch {local['batch_size']}, "
        f"{local['epochs']} epochs; added up {minutes:.0f} minutes, on {devices}, at commit "
        f"{commits}.\n"
    )
    if results.about["missing"]:
        line += f"\nNot finished yet: {', '.join(results.about['missing'])}.\n"
    gone = [name for name, run in runs.items() if run["diverged"]]
    if gone:
        line += f"\nDiverged: {', '.join(gone)}.\n"
    return line + note(results.about)


def note(about: dict[str, Any]) -> str:
    """A remark in the file of results: how they differ from what a run would give now.

    Made by hand, so a file made again has none.
    """
    return f"\nNote: {about['note']}\n" if "note" in about else ""
