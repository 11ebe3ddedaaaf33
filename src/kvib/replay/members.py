"""The population of past rounds through its changes, and the policies that follow them."""

from typing import Any

import numpy as np

from kvib import growing
from kvib.checks import positive_weights
from kvib.clients.population import Population
from kvib.policies import Policy, Setting
from kvib.sampler.learner import Learner
from kvib.types import BoolArray, FloatArray, IntArray


class Members:
    """The population of a past round, with the weights and prices of that time.

    Policies that follow it are given every change, as in a sampler (`Sampler.join`, `leave`,
    `reweigh`).

    Args:
        weights: λ of every client at the beginning.
        prices: Price of drawing each client. None means 1 each.
        clients: Clients per round that the budget of the sampler pays for at the average price.
        cap: Largest expected count of the procedure.
        variables: Variables that are known of every client, [N, d].
    """

    def __init__(
        self,
        weights: FloatArray,
        prices: FloatArray | None,
        clients: float,
        cap: float,
        variables: FloatArray,
    ) -> None:
        self._population = Population(weights)
        self._prices = None if prices is None else prices.copy()
        self.setting = Setting(self._population.raw, clients, cap, variables)
        """The setting that a policy starts with, before the first round."""
        self._learners: list[Learner] = []
        self._present = np.ones(len(weights), np.bool_)
        self._here = np.arange(len(weights))

    def __len__(self) -> int:
        """Number of clients in the population."""
        return len(self._population)

    @property
    def known(self) -> int:
        """Number of clients that ever joined. Ids are below it."""
        return self._population.count

    @property
    def here(self) -> IntArray:
        """Ids of the clients in the population, ascending."""
        return self._here

    @property
    def most(self) -> float:
        """The budget that draws all clients of the population."""
        return float(len(self) if self._prices is None else self._prices[self._here].sum())

    def are_here(self, ids: IntArray) -> BoolArray:
        """Whether each of these clients is in the population, [m]."""
        return self._present[ids]

    def share(self, ids: IntArray) -> FloatArray:
        """λ of these clients in the present population, [m]."""
        return self._population.share(ids)

    def weight(self, ids: IntArray) -> FloatArray:
        """Weights of these clients in units of the total at the beginning, which policies use."""
        return self._population.raw[ids]

    def prices(self, ids: IntArray) -> FloatArray | None:
        """Prices of these clients, [m]; None means 1 each."""
        return None if self._prices is None else self._prices[ids]

    def learner(self, policy: Policy[Any]) -> Learner:
        """A learner for this policy, which is given all changes from now on."""
        learner = Learner(policy, self.setting)
        self._learners.append(learner)
        return learner

    def join(self, ids: IntArray, weights: FloatArray, prices: FloatArray | None) -> None:
        """Let clients join, or return with their history.

        Args:
            ids: Their ids. New clients have the next ones, in order.
            weights: Their weights, in units of the total at the beginning.
            prices: Their prices; None means 1 each.
        """
        own = positive_weights(weights, ids.tolist())
        new = ids >= self.known
        self._check_ids(ids, own, new)
        self._check_prices(prices, ids)
        self._refuse_fixed()
        fresh, back = ids[new], ids[~new]
        self._make_room(self.known + len(fresh))
        for learner in self._learners:
            learner.enter(fresh, own[new])
            learner.reweigh(back, own[~new], own[~new] / self.weight(back))
        self._population.add(fresh, own[new], None)
        self._population.come_back(back)
        self._population.reweigh(back, own[~new])
        if self._prices is not None and prices is not None:
            self._prices[ids] = prices
        self._present[ids] = True
        self._resized()

    def leave(self, ids: IntArray) -> None:
        """Let clients leave."""
        self._check_known(ids)
        if not self._present[ids].all():
            raise ValueError(
                f"client {ids[~self._present[ids]][0]} leaves, and it is not there; give all "
                "changes, in order"
            )
        if len(ids) == len(self):
            raise ValueError("all clients would be gone; leave out the rounds after that")
        self._population.leave(ids)
        self._present[ids] = False
        self._resized()

    def reweigh(self, ids: IntArray, weights: FloatArray) -> None:
        """Change the weights of clients.

        Args:
            ids: Their ids.
            weights: Their new weights, in units of the total at the beginning.
        """
        own = positive_weights(weights, ids.tolist())
        self._check_known(ids)
        self._refuse_fixed()
        for learner in self._learners:
            learner.reweigh(ids, own, own / self.weight(ids))
        self._population.reweigh(ids, own)

    def _check_ids(self, ids: IntArray, weights: FloatArray, new: BoolArray) -> None:
        """Refuse clients that cannot join under these ids."""
        due = np.arange(self.known, self.known + np.count_nonzero(new))
        if ids.shape != weights.shape or not np.array_equal(ids[new], due):
            raise ValueError(
                f"clients {ids.tolist()[:10]} join with {len(weights)} weights; give one weight "
                f"each, and new clients the next ids, from {self.known} on"
            )
        self._check_known(ids[~new])
        if self._present[ids[~new]].any():
            raise ValueError(
                f"client {ids[~new][self._present[ids[~new]]][0]} joins, and it is there already; "
                "give all changes, in order"
            )

    def _check_known(self, ids: IntArray) -> None:
        """Refuse ids of clients that never joined."""
        unknown = ids[(ids < 0) | (ids >= self.known)]
        if len(unknown):
            raise ValueError(f"there is no client {unknown[0]}; ids are 0 to {self.known - 1}")

    def _check_prices(self, prices: FloatArray | None, ids: IntArray) -> None:
        """Refuse prices where the others have none, and the other way round."""
        given = None if prices is None else prices.shape
        if given != (None if self._prices is None else ids.shape):
            raise ValueError(
                "give those who join a price each if, and only if, the others have one"
            )

    def _refuse_fixed(self) -> None:
        """Refuse policies and variables that cannot follow a change, before anything happens."""
        if self.setting.variables.shape[1]:
            raise ValueError(
                "clients join or change their weights, and variables are of clients that stay; "
                "replay without variables="
            )
        for learner in self._learners:
            try:
                learner.takes_changes()
            except ValueError as error:
                raise ValueError(
                    f"{type(learner.policy).__name__} cannot be replayed in rounds between which "
                    "clients join or change their weights, since it has no `enter` and `reweigh`; "
                    "leave it out: Forecast, KVib, Vrb, BySize and Uniform can"
                ) from error

    def _make_room(self, needed: int) -> None:
        """Widen all arrays so that they hold this many clients."""
        before = len(self._population.raw)
        entries = growing.enough(needed, before)
        if entries == before:
            return
        self._population.widen(entries)
        self._present = growing.widened(self._present, entries)
        if self._prices is not None:
            self._prices = growing.widened(self._prices, entries)
        for learner in self._learners:
            learner.widen(entries)

    def _resized(self) -> None:
        """Tell the learners the new number of clients."""
        self._here = np.flatnonzero(self._present)
        for learner in self._learners:
            learner.resized(len(self), min(self.setting.budget, len(self)))
