"""pfl (Apple): cohorts drawn by a kvib sampler, and the weighting that makes them unbiased.

pfl simulates, so clients are known beforehand and all of them answer. With several workers each
has the same sampler and draws the same cohort, of which it trains its share.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from pfl.aggregate.weighting import WeightingStrategy
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.internal.ops.selector import get_default_framework_module as get_ops
from pfl.metrics import Metrics

from kvib.cohort import Cohort, FloatArray
from kvib.estimators import norm
from kvib.integrations.arrays import LARGEST
from kvib.population import Key
from kvib.randomness import generator
from kvib.sampler import Sampler


class DrawnUsers(FederatedDatasetBase):  # type: ignore[misc]
    """A federated dataset whose cohorts a sampler draws; goes with `UnbiasedWeighting`.

    Args:
        make_dataset: the dataset of a user by its key, with that key as its `user_id`.
        sampler: over all users. Workers must be given equal ones.
    """

    def __init__(self, make_dataset: Callable[[Key], Any], sampler: Sampler) -> None:
        super().__init__()
        looks = (sampler.remembered, sampler.guard, sampler.sketches.size or None)
        if sampler.policy.needs_norms or any(part is not None for part in looks):
            raise ValueError(
                "pfl sums updates before we see them: give a sampler without estimator, guard, "
                "sketch and all norms, such as kvib.Sampler(kvib.Forecast(), weights, budget)"
            )
        self.make_dataset, self.sampler = make_dataset, sampler
        self.cohort: Cohort | None = None
        """Of this round."""
        self.norms: FloatArray = np.empty(0)
        """Of those whom this worker has trained; NaN for the others."""
        self.stands_in = False
        """Whether this worker trains somebody who was not drawn, for nothing."""

    def get_cohort(self, cohort_size: int) -> Iterable[tuple[Any, int]]:
        """The users that this worker trains, each with a seed.

        pfl waits forever for a worker that trains nobody. One without a share of the cohort, and
        all of them where nobody was drawn, train a user whose update then counts nothing.
        """
        self.cohort = cohort = self.sampler.draw(budget=min(cohort_size, len(self.sampler)))
        self.norms = np.full(len(cohort), np.nan)
        rank, workers = get_ops().distributed.global_rank, get_ops().distributed.world_size
        mine = range(rank, len(cohort), workers)
        self.stands_in = len(mine) == 0
        if self.stands_in:
            [key] = self.sampler.keys(self.sampler.population.here()[:1])
            yield self.make_dataset(key), 0
            return
        seeds = generator(self.sampler.seed, cohort.round, "users").integers(0, 2**32, len(cohort))
        keys = self.sampler.keys(cohort.ids)
        for position in mine:
            yield self.make_dataset(keys[position]), int(seeds[position])

    def __next__(self) -> tuple[Any, int]:
        raise NotImplementedError("users are drawn by the cohort; use get_cohort")


class UnbiasedWeighting(WeightingStrategy):  # type: ignore[misc]
    """Σ λ_i/p_i·g_i instead of a mean; the sampler learns from ‖g_i‖ after every round.

    Put it first among the postprocessors of the backend, in place of `WeightByUser`.

    Args:
        users: the training dataset of the same backend.
    """

    def __init__(self, users: DrawnUsers) -> None:
        self.users = users

    def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Any]:
        """Weigh one user's update by its coefficient, and remember its norm."""
        cohort, sampler = self.users.cohort, self.users.sampler
        if cohort is None:
            raise ValueError("the backend's training data are not the DrawnUsers given to me")
        if self.users.stands_in:
            return stats.apply_elementwise(_nothing), Metrics()
        position = int(np.searchsorted(cohort.ids, sampler.ids([user_context.user_id])[0]))
        stats.reweight(1)
        length = norm(dict(stats.items()))
        if not length <= LARGEST:  # no answer: its norm stays NaN
            return stats.apply_elementwise(_nothing), Metrics()
        self.users.norms[position] = length
        stats.reweight(float(cohort.coefficients[position]))
        return stats, Metrics()

    def postprocess_server(
        self, *, stats: Any, central_context: Any, aggregate_metrics: Any
    ) -> tuple[Any, Any]:
        """The sum is the step: nothing is divided by; the workers tell each other the norms."""
        stats.weight = 1
        cohort = self.users.cohort
        assert cohort is not None
        self.users.sampler.update(cohort, _from_all_workers(self.users.norms))
        return stats, Metrics()


def _nothing(tensor: Any) -> Any:
    return tensor * 0 if not hasattr(tensor, "new_zeros") else tensor.new_zeros(tensor.shape)


def _from_all_workers(norms: FloatArray) -> FloatArray:
    """What each worker has seen, put together."""
    ops = get_ops()
    seen = ~np.isnan(norms)
    both = np.concatenate([np.where(seen, norms, 0.0), seen]).astype(np.float32)
    if ops.distributed.world_size > 1 and len(norms):
        [summed] = ops.distributed.all_reduce([ops.to_tensor(both)])
        both = np.asarray(summed.cpu().numpy())
    values, count = np.split(both.astype(np.float64), 2)
    return np.where(count > 0, values, np.nan)
