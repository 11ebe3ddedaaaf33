"""Numbers that the published rules need, and that a user may not know: rounds, size of feedback."""

import numpy as np

SMALLEST_GAIN, LARGEST_GAIN = 1e-60, 1e60
"""The limits of a size of feedback, whose square must be a finite and positive number."""


def horizon(rounds: int | None, round: int) -> int:
    """The horizon T: `rounds` if it is known, else the smallest power of two above `round`.

    Round 0 is tuned for 1 round, round 1 for 2, rounds 2–3 for 4, rounds 4–7 for 8, and so on. What
    was learned is kept when T doubles. Only step sizes and mixtures change, and OSMD's experts
    start again from their mixture.
    """
    return rounds if rounds is not None else 1 << round.bit_length()


def check_rounds(rounds: int | None) -> None:
    """Refuse a horizon that is not a positive number of rounds."""
    if rounds is not None and (not isinstance(rounds, int | np.integer) or rounds < 1):
        raise ValueError(f"rounds={rounds} is not a positive integer; leave it out if unknown")


def check_gain(gain: float | None, name: str = "gain") -> None:
    """Refuse a size of feedback whose square would not be a finite and positive number."""
    if gain is not None and not SMALLEST_GAIN < gain < LARGEST_GAIN:
        raise ValueError(
            f"{name}={gain} is not a positive number of ordinary size; leave it out if unknown"
        )
