"""The options of a fleet, and how they make or continue its sampler once clients are known."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kvib.checks import checked_kind, checked_seed, positive_weights
from kvib.clients import rates
from kvib.clients.cool_down import CoolDown
from kvib.clients.rates import EstimatedRate
from kvib.cohort import Cohort
from kvib.estimators.guard import Guard
from kvib.integrations.kit.budgets import Budget
from kvib.integrations.kit.offline import LEAVE_AFTER, EstimateAvailability, Offline, shown
from kvib.journal import read
from kvib.journal.opening import opened
from kvib.journal.sampler import AnySampler
from kvib.policies import Forecast, Policy
from kvib.policies.checked import checked_policy, checked_procedure
from kvib.procedures import Procedure
from kvib.sampler.sampler import Sampler
from kvib.types import Key

Guards = Guard | Callable[[Policy[Any]], Guard | None] | None
"""A guard, None, or a function that chooses one for a policy."""


def default_guard(policy: Policy[Any]) -> Guard | None:
    """Return the guard that goes with a policy: `kvib.Guard()` with Forecast, None with others.

    Forecast draws clients in proportion to their share of the step. A share then seldom exceeds two
    typical steps where norms are near their forecasts. With other policies that is an ordinary
    round, above all with uniform draws of clients of unequal size, and a guard would make every
    estimate too small.

    Args:
        policy: The policy of the sampler.

    Examples:
        >>> import kvib
        >>> from kvib.integrations.kit import default_guard
        >>> default_guard(kvib.Forecast())
        Guard(limit=None)
        >>> default_guard(kvib.Uniform()) is None
        True
    """
    return Guard() if isinstance(policy, Forecast) else None


class Opened(NamedTuple):
    """A sampler that was begun or continued."""

    sampler: AnySampler
    left_over: list[Cohort]
    """The cohorts that an earlier process has drawn and got no feedback for."""
    close: Callable[[], None]
    """The function that closes the journal."""


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Holds the options with which a fleet makes its sampler once clients are known.

    Args:
        policy: The policy, which decides which clients are preferred.
        budget: The budget of a round, as a function of the budget that draws all clients and of the
            round. `budget_of` makes one.
        procedure: The procedure that draws. None means the policy's own.
        seed: The seed that decides every draw.
        journal: The path of a file that keeps the sampler. None keeps it in memory only.
        switch: Whether a journal of another policy goes on with this one.
        weights: The weights λ by key, in any unit. Clients that are not named take no part. None
            means the sizes that clients report, or equal weights where they report none.
        max_weight: The largest size that is believed. A client that reports more counts as this.
        offline: The meaning of offline clients, `EstimateAvailability()` or `Renormalise()`.
        response: The rate of answers: a number, `EstimatedRate()`, or one number by key.
        guard: The bound on what one client can add to a step, or a function that chooses it for the
            policy. None means no bound.
        cost: The cost of drawing each client, by key, which is taken from the budget. Clients that
            are not named take no part. None means 1 each.
        over_select: Whether the budget is the expected number of answers instead of drawn clients.
        cool_down: The number of rounds that a drawn client waits before it can be drawn again.
        variables: The auxiliary variables of every client, by key, for a fixed population.

    Examples:
        >>> import kvib
        >>> from kvib.integrations.kit import FleetOptions
        >>> options = FleetOptions(policy=kvib.Forecast(), budget=lambda most, round: 0.1 * most)
        >>> options.leave_after
        50
        >>> options.chosen_guard
        Guard(limit=None)
        >>> FleetOptions(policy=kvib.Avare(), budget=lambda most, round: 5.0).fixed
        'policy Avare'
    """

    policy: Policy[Any]
    budget: Budget
    procedure: Procedure | None = None
    seed: int = 0
    journal: str | os.PathLike[str] | None = None
    switch: bool = False
    weights: Mapping[Key, float] | None = None
    max_weight: float | None = None
    offline: Offline = EstimateAvailability()  # noqa: RUF009 (frozen)
    response: float | EstimatedRate | Mapping[Key, float] = EstimatedRate()  # noqa: RUF009
    guard: Guards = default_guard
    cost: Mapping[Key, float] | None = None
    over_select: bool = False
    cool_down: int = 0
    variables: Mapping[Key, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        own = checked_policy(self.policy).procedure
        checked_procedure(self.procedure or own, self.policy, self.cost is not None)
        checked_seed(self.seed)
        self._check_tables()
        if self.max_weight is not None and not _is_positive(self.max_weight):
            raise ValueError(f"max_weight={self.max_weight!r} is not a positive size")
        if not isinstance(self.offline, Offline):
            raise ValueError(
                f"offline={self.offline!r} is neither EstimateAvailability() nor Renormalise()"
            )
        self._check_options()
        if self.policy.needs_norms:
            raise ValueError(
                f"{type(self.policy).__name__} must know every client's norm before it draws, "
                "which takes a full round; choose another policy"
            )
        if self.fixed and not (
            isinstance(self.offline, EstimateAvailability)
            and self.offline.leave_after in (None, LEAVE_AFTER)
        ):
            raise ValueError(
                f"{self.offline} lets clients leave, and {self.fixed} is for clients that stay; "
                "give one rate for all, kvib.EstimatedRate(), or EstimateAvailability()"
            )

    def _check_options(self) -> None:
        """Refuse at once what the sampler would refuse only when clients are known."""
        if not isinstance(self.response, Mapping):
            rates.start(self.response, 1, "response")
        if not callable(self.guard):
            checked_kind(self.guard, Guard, "guard")
        CoolDown(self.cool_down)
        for name in ("over_select", "switch"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} is neither True nor False")
        if self.journal is None:
            return
        path = Path(self.journal).absolute()
        if not path.parent.is_dir():
            raise ValueError(f"there is no folder for the journal {self.journal}; make it first")
        if path.is_dir():
            raise ValueError(f"the journal {self.journal} is a folder; give the name of a file")

    def _check_tables(self) -> None:
        """Refuse tables that are not by client key, or have impossible values."""
        for name in ("weights", "cost", "variables"):
            table = getattr(self, name)
            if table is None:
                continue
            if not isinstance(table, Mapping) or not table:
                raise ValueError(
                    f"{name}={table!r} is not a mapping from client key to {name}; write "
                    "{key: …}, or leave it out"
                )
            odd = [key for key in table if isinstance(key, bool) or not isinstance(key, Key)]
            if odd:
                raise ValueError(
                    f"{name} names a client {odd[0]!r}; clients are called by strings or integers"
                )
        if self.weights is not None:
            positive_weights(list(self.weights.values()), list(self.weights))
        for key, price in (self.cost or {}).items():
            if not _is_positive(price):
                raise ValueError(f"cost {price!r} of client {key!r} is not a positive number")
        if len({len(row) for row in (self.variables or {}).values()}) > 1:
            raise ValueError("variables have rows of different length; give each client as many")

    @property
    def fixed(self) -> str | None:
        """The option that fixes the population and its weights. None if they may change."""
        if isinstance(self.response, Mapping):
            return "response={…}"
        if self.variables is not None:
            return "variables={…}"
        kind = type(self.policy)
        takes_changes = kind.enter is not Policy.enter and kind.reweigh is not Policy.reweigh
        return None if takes_changes else f"policy {kind.__name__}"

    @property
    def chosen_guard(self) -> Guard | None:
        """The guard of a sampler that is begun with these options."""
        return self.guard(self.policy) if callable(self.guard) else self.guard

    @property
    def leave_after(self) -> int | None:
        """The number of rounds offline after which a client leaves. None where clients stay."""
        return None if self.fixed else self.offline.leave_after

    def missing(self, key: Key) -> str | None:
        """Return the name of the option that lacks this client, or None if no option does.

        Args:
            key: The key of the client, which takes no part if an option lacks it.
        """
        tables = {"weights": self.weights, "cost": self.cost, "variables": self.variables}
        lacking = (name for name, table in tables.items() if table is not None)
        return next((name for name in lacking if key not in (tables[name] or {})), None)

    def prices(self, keys: Sequence[Key]) -> list[float] | None:
        """List the costs of these clients, or return None without costs.

        Args:
            keys: The keys of the clients.
        """
        return None if self.cost is None else [float(self.cost[key]) for key in keys]

    def open(self, keys: list[Key], weights: list[float]) -> Opened:
        """Begin the sampler with these clients, or continue it from its journal.

        Args:
            keys: The keys of the first clients.
            weights: The weights of the first clients, in the order of the keys.
        """
        terms: dict[str, Any] = {
            "policy": self.policy,
            "seed": self.seed,
            "availability": self.offline.rate,
            "over_select": self.over_select,
            "cool_down": self.cool_down,
        }
        if self.procedure is not None:
            terms["procedure"] = self.procedure
        if not callable(self.guard):
            terms["guard"] = self.guard
        if self.journal is not None and Path(self.journal).exists():
            return self._continued(self.journal, terms)
        defaults: dict[str, Any] = {"guard": self.chosen_guard} if callable(self.guard) else {}
        prices = self.prices(keys)
        most = float(len(keys)) if prices is None else sum(prices)
        terms |= {
            "weights": weights,
            "budget": min(self.budget(most, 0), most),
            "keys": keys,
            "response": self._rates(keys),
            "cost": prices,
        }
        if self.variables is not None:
            terms["variables"] = [list(self.variables[key]) for key in keys]
        if self.journal is not None:
            new = opened(self.journal, terms, defaults)
            return Opened(new, [], new.close)
        return Opened(Sampler(**defaults, **terms), [], lambda: None)

    def _continued(self, path: str | os.PathLike[str], terms: dict[str, Any]) -> Opened:
        """The sampler of this journal.

        The journal also holds what is given by client, and the guard where a function chose it.
        """
        if isinstance(self.response, Mapping):
            terms["response"] = self._rates(list(read(path).keys()))
        else:
            terms["response"] = self.response
        if self.switch:
            for name in ("policy", "procedure", "guard"):
                terms.pop(name, None)
        known = opened(path, terms, {})
        try:
            self._check_costs(known)
            if self.switch:
                known.switch(self.policy, self.procedure, guard=self.chosen_guard)
        except BaseException:
            known.close()
            raise
        return Opened(known, known.outstanding(), known.close)

    def _check_costs(self, known: AnySampler) -> None:
        """Refuse costs that differ from those in the journal."""
        then = known.state.prices.cost
        if (then is None) != (self.cost is None):
            raise ValueError(
                f"{self.journal} was begun {'without' if then is None else 'with'} costs; do the "
                "same, or begin another file"
            )
        if then is None or self.cost is None:
            return
        keys = known.keys(range(len(known)))
        other = [k for i, k in enumerate(keys) if k in self.cost and self.cost[k] != then[i]]
        if other:
            raise ValueError(
                f"{self.journal} was begun with another cost of client {shown(other)}; give the "
                "same, or begin another file"
            )

    def _rates(self, keys: list[Key]) -> Any:
        """The rates of answers in the form that the sampler takes."""
        if not isinstance(self.response, Mapping):
            return self.response
        unknown = [key for key in keys if key not in self.response]
        if unknown:
            raise ValueError(f"response has no rate for client {shown(unknown)}; give one")
        return [self.response[key] for key in keys]


def _is_positive(number: Any) -> bool:
    """Whether this is a positive, finite number."""
    return (
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
    )
