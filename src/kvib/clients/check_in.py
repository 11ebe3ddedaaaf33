"""One coin per (seed, round, key): every toss of the same coin gives the same number."""

from hashlib import blake2b
from typing import NamedTuple


class Admission(NamedTuple):
    """The answer to a client that checks in: whether it takes part in the current round."""

    admitted: bool
    """Whether the client takes part."""
    coefficient: float
    """The factor of its update in the step; 0 if it is not admitted."""

    def __bool__(self) -> bool:
        return self.admitted


def coin(seed: int, round: int, key: str | int) -> float:
    """A number in [0, 1) that is uniform and independent over seeds, rounds and keys.

    It is a keyed hash. A device that knows the rule but not the seed cannot choose a key that wins.
    """
    name = f"{'n' if isinstance(key, int) else 's'}{key}".encode("utf-8", "surrogatepass")
    secret = blake2b(f"kvib {seed} {round}".encode(), digest_size=32).digest()
    word = int.from_bytes(blake2b(name, digest_size=8, key=secret).digest(), "big")
    return (word >> 11) * 2.0**-53  # 53 random bits fill the mantissa of a double
