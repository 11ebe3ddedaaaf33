"""What one round drew, with everything that makes its estimate unbiased."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvib.checks import earlier_names, finite_norms, floats, short
from kvib.types import BoolArray, FloatArray, IntArray

Guarantee = Literal["unbiased", "consistent", "biased"]


class Pairs(NamedTuple):
    """Second moments of the counts n_i of some clients, relative to e_i = E[n_i].

    Together they give the variance of every estimate Σ n_i ζ_i without knowing the design:
    V = Σ e_i size_i ‖ζ_i‖² − ½ Σ_{i≠j} (ratio_ij − 1) e_i e_j ‖ζ_i − ζ_j‖².
    """

    ratio: float | FloatArray
    """E[n_i n_j] / (e_i e_j) for i ≠ j: [m, m], or one number when all pairs share it."""
    size: FloatArray
    """Cov(n_i, Σ_j n_j) / e_i, [m]: 1 − p_i for independent draws, 0 for a fixed size."""

    @property
    def uncorrelated(self) -> bool:
        """Whether norms alone give the variance, as for independent draws."""
        return isinstance(self.ratio, float) and self.ratio == 1.0

    @property
    def complete(self) -> bool:
        """Whether cohorts of the design show all of its variance."""
        return True


class Incomplete(Pairs):
    """Second moments of a design in which some clients can never be drawn together (one draw, say):
    no cohort shows what these pairs add to the variance."""

    @property
    def complete(self) -> bool:
        """They do not."""
        return False


RENAMED = {"response": "answer_probability", "left_out": "excluded"}
"""Fields of a cohort in version 0.1, and their names today."""


@earlier_names(RENAMED)
@dataclass(frozen=True, eq=False, kw_only=True)
class Cohort:
    """The clients of one round, aligned arrays in ascending order of id.

    Examples:
        >>> cohort = Cohort(ids=[2, 5], count=[1, 1], expected=[0.5, 0.1], weight=[0.2, 0.05])
        >>> cohort.coefficients                                # λ · count / (q · expected)
        array([0.4, 0.5])
    """

    ids: IntArray
    count: IntArray
    """How often each was drawn: 1, or more when drawing with replacement."""
    expected: FloatArray
    """E[count]: the inclusion probability p, or K·u when drawing with replacement."""
    weight: FloatArray
    """λ of the drawn."""
    answer_probability: FloatArray = field(default_factory=lambda: np.ones(1))
    """Probability q = a·r that the client is available and its answer arrives."""
    availability: FloatArray = field(default_factory=lambda: np.ones(1))
    """The part of q that was decided before the draw."""
    round: int = 0
    budget: float = float("nan")
    """Σ expected over all who could be drawn: clients per draw, whatever the budget counts."""
    requested: float = float("nan")
    """The budget that was asked for: clients, costs or answers; fewer may be available."""
    most: float = 1.0
    """How often one client can be drawn: once, or in every draw of those with replacement."""
    guarantee: Guarantee = "unbiased"
    """Of Σ coefficient·update over those of this cohort who answer, each with probability q:
    unbiased; consistent, where q was estimated; or biased, as of a selector's choice. It is said
    before the answers. Once it is known who answered, `take` says it again: a round that lost a
    client whose answer was certain is biased. `Sampler.guarantee` has it of the last round."""
    by_chance: bool = True
    """Whether clients were drawn with the probabilities in `expected`; False: chosen by a selector,
    which has none."""
    token: str = ""
    """Names the sampler that drew it."""
    pairs: Callable[[], Pairs] | None = field(default=None, repr=False)
    """Second moments among the drawn, computed when asked for; None where nobody knows them."""
    excluded: IntArray | None = field(default=None, repr=False)
    """Whom the estimate does not stand for, since they could not be drawn: told to estimators that
    remember, which know something of them too. None: nobody, or nobody asked."""

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
        values.flags.writeable = False
        object.__setattr__(self, name, values)

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """Take the fields of a pickled cohort, also of one that version 0.1 pickled."""
        self.__dict__.update({RENAMED.get(name, name): value for name, value in fields.items()})

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def expected_answers(self) -> FloatArray:
        """q·expected: how often each is drawn, available and heard, on average."""
        return self.answer_probability * self.expected

    @property
    def coefficients(self) -> FloatArray:
        """λ·count / (q·expected): Horvitz–Thompson and Hansen–Hurwitz in one line."""
        return self.weight * self.count / self.expected_answers

    @property
    def noise(self) -> FloatArray:
        """count·(λ/e)²·(1 − e/most) with e = q·expected: summed with ‖g‖² it estimates the variance
        of draws and silences that are independent."""
        e = self.expected_answers
        left = np.maximum(1 - e / self.most, 0.0)
        return np.asarray(self.count * (self.weight / e) ** 2 * left)

    def lost(self, answered: BoolArray) -> BoolArray:
        """Who did not answer although its answer was certain, [m]."""
        return np.asarray(~answered & (self.answer_probability == self.availability))

    def take(self, keep: BoolArray) -> "Cohort":
        """The part of this cohort that `keep` marks, without its second moments: those who
        answered, say. Without a client whose answer was certain it is biased."""
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
        many = f"{len(self)} client{'' if len(self) == 1 else 's'}"
        return (
            f"<Cohort of round {self.round}: {many} [{ids}], budget {self.budget:g}, "
            f"{self.guarantee}>"
        )


def checked_cohort(given: Any) -> Cohort:
    """The cohort that `draw` returned; anything else is refused."""
    if not isinstance(given, Cohort):
        raise ValueError(f"{short(given)} is not a cohort; give the one that draw() returned")
    return given


def cohort_norms(cohort: Cohort, norms: ArrayLike | Mapping[int, float]) -> FloatArray:
    """‖g‖ of a cohort in the order of its ids; NaN where a client did not answer."""
    way_out = "give ‖g‖ of each client in the order of cohort.ids, NaN where there was no answer"
    checked_cohort(cohort)
    given = by_id(cohort, norms) if isinstance(norms, Mapping) else norms
    values = floats(given, "norms", way_out)
    if values.shape != (len(cohort),):
        if values.ndim > 1:
            way_out = "kvib.norms(updates) makes one number of each update"
        raise ValueError(
            f"norms have shape {values.shape} for a cohort of {len(cohort)}; {way_out}"
        )
    return finite_norms(values, cohort.ids)


def by_id(cohort: Cohort, values: Mapping[int, Any]) -> list[Any]:
    """A mapping from client id to value as a list in the order of cohort.ids, None where absent."""
    unknown = set(values) - set(cohort.ids.tolist())
    if unknown:
        raise ValueError(
            f"client {min(unknown, key=str)!r} is not in the cohort of round {cohort.round}; "
            f"its ids are {cohort.ids.tolist()[:10]}{' …' if len(cohort) > 10 else ''}"
        )
    return [values.get(i) for i in cohort.ids.tolist()]
