"""The cohort: the clients of one round, with everything that makes its estimate unbiased."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvib.checks import earlier_names, finite_norms, floats, short
from kvib.types import BoolArray, FloatArray, IntArray

Guarantee = Literal["unbiased", "consistent", "biased"]
"""How far an estimate can be trusted. "consistent" means that a probability was estimated."""


class Pairs(NamedTuple):
    """Second moments of the counts n_i of some clients, relative to e_i = E[n_i].

    Together they give the variance of every estimate Σ n_i ζ_i. Nothing else about the design has
    to be known:

    V = Σ e_i size_i ‖ζ_i‖² − ½ Σ_{i≠j} (ratio_ij − 1) e_i e_j ‖ζ_i − ζ_j‖².

    Examples:
        >>> import numpy as np
        >>> p = np.array([0.5, 0.25])
        >>> pairs = Pairs(ratio=1.0, size=1 - p)               # two independent coins
        >>> pairs.uncorrelated
        True
    """

    ratio: float | FloatArray
    """E[n_i n_j] / (e_i e_j) for i ≠ j: [m, m], or one number if all pairs share it."""
    size: FloatArray
    """Cov(n_i, Σ_j n_j) / e_i, [m]. It is 1 − p_i for independent draws, 0 for a fixed size."""

    @property
    def uncorrelated(self) -> bool:
        """Whether norms alone determine the variance, as they do for independent draws."""
        return isinstance(self.ratio, float) and self.ratio == 1.0

    @property
    def complete(self) -> bool:
        """Whether cohorts of this design show all of its variance."""
        return True


class Incomplete(Pairs):
    """Second moments of a design in which some clients can never be drawn together.

    A single draw is an example. No cohort shows what these pairs add to the variance.

    Examples:
        >>> import numpy as np
        >>> Incomplete(ratio=0.0, size=np.zeros(2)).complete   # one draw: never two clients
        False
    """

    @property
    def complete(self) -> bool:
        """False: no cohort shows all of the variance."""
        return False


RENAMED = {"response": "answer_probability", "left_out": "excluded"}
"""The fields of a cohort by their names in version 0.1, with their names today."""


@earlier_names(RENAMED)
@dataclass(frozen=True, eq=False, kw_only=True)
class Cohort:
    """A cohort holds the clients drawn in one round, and the numbers that weigh their updates.

    All arrays have one entry per drawn client, in ascending order of id. The estimate of the round
    is Σ coefficient·update with coefficient = λ·count / (q·expected).

    Examples:
        >>> cohort = Cohort(ids=[2, 5], count=[1, 1], expected=[0.5, 0.1], weight=[0.2, 0.05])
        >>> cohort.coefficients                                # λ · count / (q · expected)
        array([0.4, 0.5])
    """

    ids: IntArray
    """The ids of the drawn clients, [m], ascending."""
    count: IntArray
    """How often each client was drawn, [m]: 1, or more when drawing with replacement."""
    expected: FloatArray
    """E[count], [m]: the inclusion probability p, or K·u when drawing with replacement."""
    weight: FloatArray
    """λ of each client, [m]."""
    answer_probability: FloatArray = field(default_factory=lambda: np.ones(1))
    """The probability q = a·r that a client is available and its answer arrives, [m]."""
    availability: FloatArray = field(default_factory=lambda: np.ones(1))
    """The factor a of q, which is decided before the draw, [m]."""
    round: int = 0
    """The number of the round, counted from 0."""
    budget: float = float("nan")
    """Σ expected over all eligible clients: a number of clients, also if the budget is in costs."""
    requested: float = float("nan")
    """The requested budget: clients, costs or answers. Fewer clients may have been available."""
    most: float = 1.0
    """The largest possible count of a client: 1, or with replacement the number K of draws."""
    guarantee: Guarantee = "unbiased"
    """The guarantee for Σ coefficient·update over the clients that answer, each with probability q.

    The estimate is "unbiased", "consistent" where q was estimated, or "biased" where a selector
    chose the clients. The field states the guarantee before the answers. When it is known who
    answered, `take` returns a cohort with the guarantee that holds then: a round that lost a client
    whose answer was certain is biased. `Sampler.guarantee` is the guarantee of the last round."""
    by_chance: bool = True
    """Whether the clients were drawn with the probabilities in `expected`. It is False where a
    selector chose them: a selector has no probabilities."""
    token: str = ""
    """The token of the sampler that drew the cohort. A sampler recognises its cohorts by it."""
    pairs: Callable[[], Pairs] | None = field(default=None, repr=False)
    """A function that computes the second moments among the drawn clients. It is None where they
    are not known."""
    excluded: IntArray | None = field(default=None, repr=False)
    """The ids of clients that the estimate does not stand for, since they could not be drawn.
    Estimators that remember updates need them. None means that there are none, or that no
    estimator needs them."""

    def __post_init__(self) -> None:
        for name in ("ids", "count"):
            self._freeze(name, np.array(getattr(self, name), dtype=np.int64))
        for name in ("expected", "weight"):
            self._freeze(name, np.array(getattr(self, name), dtype=np.float64))
        for name in ("answer_probability", "availability"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            self._freeze(name, np.array(np.broadcast_to(values, self.ids.shape)))
        if self.excluded is not None:
            self._freeze("excluded", np.array(self.excluded, dtype=np.int64))
        if not self.ids.shape == self.count.shape == self.expected.shape == self.weight.shape:
            raise ValueError("ids, count, expected and weight must be of the same length")
        if self.ids.ndim != 1 or (np.diff(self.ids) <= 0).any():
            raise ValueError(f"ids must ascend, and they are {self.ids.tolist()[:10]}")

    def _freeze(self, name: str, values: NDArray[np.generic]) -> None:
        """Set a field to an array that cannot be changed."""
        values.flags.writeable = False
        object.__setattr__(self, name, values)

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """Restore a pickled cohort, also one that was pickled by version 0.1."""
        self.__dict__.update({RENAMED.get(name, name): value for name, value in fields.items()})

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def expected_answers(self) -> FloatArray:
        """q·expected, [m]: how often each client is available, drawn and answers, on average."""
        return self.answer_probability * self.expected

    @property
    def coefficients(self) -> FloatArray:
        """λ·count / (q·expected), [m]: Horvitz–Thompson and Hansen–Hurwitz in one line."""
        return self.weight * self.count / self.expected_answers

    @property
    def noise(self) -> FloatArray:
        """count·(λ/e)²·(1 − e/most) with e = q·expected, [m].

        Σ noise·‖g‖² estimates the variance where draws and missing answers are independent.
        """
        e = self.expected_answers
        not_certain = np.maximum(1 - e / self.most, 0.0)
        return np.asarray(self.count * (self.weight / e) ** 2 * not_certain)

    def lost(self, answered: BoolArray) -> BoolArray:
        """Mark the clients that did not answer although their answer was certain, [m].

        Args:
            answered: Whether each client of the cohort answered, [m].
        """
        return np.asarray(~answered & (self.answer_probability == self.availability))

    def take(self, keep: BoolArray) -> "Cohort":
        """Keep a part of this cohort, for example the clients that answered.

        The second moments are left out. A cohort that loses a client whose answer was certain is
        biased.

        Args:
            keep: Whether each client is kept, [m], or the places of the kept clients.
        """
        mask = np.zeros(len(self), np.bool_)
        mask[keep] = True
        lost = self.guarantee == "unbiased" and bool(self.lost(mask).any())
        aligned = ("ids", "count", "expected", "weight", "answer_probability", "availability")
        return replace(
            self,
            pairs=None,
            guarantee="biased" if lost else self.guarantee,
            **{name: getattr(self, name)[mask] for name in aligned},
        )

    def __repr__(self) -> str:
        ids = ", ".join(map(str, self.ids[:8])) + (", …" if len(self) > 8 else "")
        clients = f"{len(self)} client{'' if len(self) == 1 else 's'}"
        return (
            f"<Cohort of round {self.round}: {clients} [{ids}], budget {self.budget:g}, "
            f"{self.guarantee}>"
        )


def checked_cohort(cohort: Any) -> Cohort:
    """The cohort itself. Anything that is not a cohort raises a ValueError."""
    if not isinstance(cohort, Cohort):
        raise ValueError(f"{short(cohort)} is not a cohort; give the one that draw() returned")
    return cohort


def cohort_norms(cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> FloatArray:
    """‖g‖ of each client of a cohort, [m]; NaN where a client did not answer."""
    way_out = "give ‖g‖ of each client in the order of cohort.ids, NaN where there was no answer"
    checked_cohort(cohort)
    ordered = by_id(cohort, norms) if isinstance(norms, Mapping) else norms
    values = floats(ordered, "norms", way_out)
    if values.shape != (len(cohort),):
        if values.ndim > 1:
            way_out = "kvib.norms(updates) makes one number of each update"
        raise ValueError(
            f"norms have shape {values.shape} for a cohort of {len(cohort)}; {way_out}"
        )
    return finite_norms(values, cohort.ids)


def by_id(cohort: Cohort, values: Mapping[int, Any]) -> list[Any]:
    """The values of a mapping by client id in the order of cohort.ids; None where it has none."""
    unknown = set(values) - set(cohort.ids.tolist())
    if unknown:
        raise ValueError(
            f"client {min(unknown, key=str)!r} is not in the cohort of round {cohort.round}; "
            f"its ids are {cohort.ids.tolist()[:10]}{' …' if len(cohort) > 10 else ''}"
        )
    return [values.get(i) for i in cohort.ids.tolist()]
