"""One coin per (seed, round, key): the same for whoever tosses it, as often as it is tossed."""

from hashlib import blake2b
from typing import NamedTuple


class Admission(NamedTuple):
    """Whether a client takes part in the current round."""

    admitted: bool
    coefficient: float
    """What its update is to be multiplied by; 0 if it is not admitted."""

    def __bool__(self) -> bool:
        return self.admitted


def coin(seed: int, round: int, key: str | int) -> float:
    """A number in [0, 1) that is uniform and independent over seeds, rounds and keys.

    A keyed hash: devices that know the rule but not the seed cannot choose keys that win.
    """
    name = f"{'n' if isinstance(key, int) else 's'}{key}".encode("utf-8", "surrogatepass")
    secret = blake2b(f"kvib {seed} {round}".encode(), digest_size=32).digest()
    word = int.from_bytes(blake2b(name, digest_size=8, key=secret).digest(), "big")
    return (word >> 11) * 2.0**-53
