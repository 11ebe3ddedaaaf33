"""FedLab: a server handler that draws by a kvib sampler and estimates the full step."""

from collections.abc import Callable, Sequence
from typing import Any

from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.utils import SerializationTool

from kvib.cohort import Cohort
from kvib.estimators import norm
from kvib.integrations.arrays import LARGEST
from kvib.sampler import Sampler


class UnbiasedHandler(SyncServerHandler):  # type: ignore[misc]
    """In place of `SyncServerHandler`; x − Σ λ_i/p_i·(x − x_i) instead of a mean.

    FedLab's payloads do not say whose they are. In its standalone pipeline they come in the order
    of the drawn clients, which is taken for granted here; over a network they do not, so let
    clients send their id along and say where it is.

    Args:
        model: as of `SyncServerHandler`.
        global_round: likewise.
        sampler: over clients 0 to N − 1.
        sender: the client of a payload; None: the order of the drawn, standalone only.
        options: `cuda`, `device`, `logger`.
    """

    def __init__(
        self,
        model: Any,
        global_round: int,
        sampler: Sampler,
        sender: Callable[[Sequence[Any]], int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, global_round, 1.0, **options)
        if sampler.policy.needs_norms:
            raise ValueError("the policy must know all norms before it draws; choose another")
        self.sampler, self.sender = sampler, sender
        self.cohort: Cohort | None = None
        """Of this round."""
        self.refused: dict[int, str] = {}
        """Why clients of the last round were not heard."""

    @property
    def num_clients_per_round(self) -> int:
        """How many were drawn, which need not be the same in every round."""
        return 0 if self.cohort is None else len(self.cohort)

    def sample_clients(self) -> list[int]:
        """Ids of the drawn, ascending; a round in which nobody was drawn leaves the model."""
        if self.num_clients not in (0, len(self.sampler)):
            raise ValueError(
                f"the sampler has {len(self.sampler)} clients, the trainer {self.num_clients}"
            )
        while not self.if_stop:
            self.cohort = self.sampler.draw()
            if len(self.cohort):
                return [int(i) for i in self.cohort.ids]
            self.sampler.update(self.cohort, [])
            self.round += 1
        return []

    def global_update(self, buffer: Sequence[Sequence[Any]]) -> None:
        """Take the step; the sampler learns. What is no update of this model is no answer."""
        cohort, x = self.cohort, self.model_parameters
        assert cohort is not None
        senders = cohort.ids.tolist() if self.sender is None else map(self.sender, buffer)
        updates: dict[int, Any] = {}
        self.refused = {}
        for client, payload in zip(senders, buffer, strict=True):
            if client in updates or client not in cohort.ids:
                continue  # twice, or not asked
            if payload[0].shape != x.shape:
                self._refuse(client, f"{len(payload[0])} parameters, in the model {len(x)}")
            elif not norm(update := x - payload[0].to(x)) <= LARGEST:
                self._refuse(client, "it diverged, or has no numbers in it")
            else:
                updates[client] = update
        ordered = [updates.get(int(i)) for i in cohort.ids]
        d = self.sampler.step(cohort, ordered)
        SerializationTool.deserialize_model(self._model, x - d)

    def _refuse(self, client: int, why: str) -> None:
        self.refused[client] = why
        self._LOGGER.warning(f"kvib: client {client} was not heard: {why}")
