"""pfl (Apple): cohorts drawn by a kvib sampler, and the weighting that makes them unbiased.

pfl is a simulator, so clients are known beforehand and all of them answer. With several workers
each has the same sampler, draws the same cohort, and trains its share of it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from pfl.aggregate.weighting import WeightingStrategy
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.internal.ops.selector import get_default_framework_module as get_ops
from pfl.metrics import Metrics

from kvib.cohort import Cohort
from kvib.estimators.estimate import norm
from kvib.integrations.kit import BadReplyError, KnownClients, checked_length
from kvib.journal.sampler import AnySampler
from kvib.randomness import generator
from kvib.types import FloatArray, Key


class DrawnUsers(FederatedDatasetBase):  # type: ignore[misc]
    """A federated dataset whose cohorts a sampler draws. Use it together with `UnbiasedWeighting`.

    Args:
        make_dataset: The function that makes the dataset of a user from its key. The dataset must
            have the key as its `user_id`.
        sampler: The sampler over all users. All workers must be given equal samplers.
    """

    def __init__(self, make_dataset: Callable[[Key], Any], sampler: AnySampler) -> None:
        super().__init__()
        self.clients = KnownClients(sampler, sums_alone=True)
        self.make_dataset, self.sampler = make_dataset, sampler
        self.norms: FloatArray = np.empty(0)
        """The norms of the users that this worker has trained. NaN for the others."""
        self.stands_in = False
        """Whether this worker trains a user whose update does not count, since it has no share."""

    @property
    def cohort(self) -> Cohort | None:
        """The cohort of this round. None before the first."""
        return self.clients.cohort

    def get_cohort(self, cohort_size: int) -> Iterable[tuple[Any, int]]:
        """Draw a cohort, and yield the users that this worker trains, each with a seed.

        pfl waits forever for a worker that trains no user. A worker without a share of the cohort
        trains a user whose update does not count, and so do all workers if no user was drawn.

        Args:
            cohort_size: The budget of the round.
        """
        round = self.clients.draw(cohort_size)
        self.norms = np.full(len(round), np.nan)
        rank, workers = get_ops().distributed.global_rank, get_ops().distributed.world_size
        mine = range(rank, len(round), workers)
        self.stands_in = len(mine) == 0
        if self.stands_in:
            [key] = self.sampler.keys(self.sampler.state.population.here()[:1])
            yield self.make_dataset(key), 0
            return
        rng = generator(self.sampler.seed, round.cohort.round, "users")
        seeds = rng.integers(0, 2**32, len(round))
        for position in mine:
            yield self.make_dataset(round.keys[position]), int(seeds[position])

    def __next__(self) -> tuple[Any, int]:
        raise NotImplementedError("users are drawn by the cohort; use get_cohort")


class UnbiasedWeighting(WeightingStrategy):  # type: ignore[misc]
    """Weighs updates so that their sum is Σ λ_i/p_i·g_i, and lets the sampler learn from ‖g_i‖.

    Put it first among the postprocessors of the backend, in place of `WeightByUser`.

    Args:
        users: The training dataset of the same backend.
    """

    def __init__(self, users: DrawnUsers) -> None:
        self.users = users

    def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Any]:
        """Multiply one user's update by its coefficient, and remember its norm."""
        round = self.users.clients.round
        if round is None:
            raise ValueError("the backend's training data are not the DrawnUsers given to me")
        if self.users.stands_in:
            return stats.apply_elementwise(_nothing), Metrics()
        position = round.answers(user_context.user_id)
        if position is None:
            raise ValueError(
                f"user {user_context.user_id!r} was not drawn, or came twice; make_dataset(key) "
                "must set user_id=key"
            )
        stats.reweight(1)
        try:
            self.users.norms[position] = checked_length(norm(dict(stats.items())))
        except BadReplyError as error:  # the user counts as silent: its norm stays NaN
            round.refuse(position, str(error))
            return stats.apply_elementwise(_nothing), Metrics()
        stats.reweight(float(round.cohort.coefficients[position]))
        return stats, Metrics()

    def postprocess_server(
        self, *, stats: Any, central_context: Any, aggregate_metrics: Any
    ) -> tuple[Any, Any]:
        """Take the sum as the step, without a division, and let all workers learn all norms."""
        stats.weight = 1
        round = self.users.clients.round
        assert round is not None
        round.learn(_from_all_workers(self.users.norms))
        return stats, Metrics()


def _nothing(tensor: Any) -> Any:
    """Zeros in the form of this tensor."""
    return tensor * 0 if not hasattr(tensor, "new_zeros") else tensor.new_zeros(tensor.shape)


def _from_all_workers(norms: FloatArray) -> FloatArray:
    """The norms that all workers have seen, in one array."""
    ops = get_ops()
    seen = ~np.isnan(norms)
    both = np.concatenate([np.where(seen, norms, 0.0), seen]).astype(np.float32)
    if ops.distributed.world_size > 1 and len(norms):
        [summed] = ops.distributed.all_reduce([ops.to_tensor(both)])
        both = np.asarray(summed.cpu().numpy())
    values, count = np.split(both.astype(np.float64), 2)
    return np.where(count > 0, values, np.nan)
