"""FedLab: a server handler that draws by a kvib sampler and estimates the full step."""

from collections.abc import Callable, Sequence
from typing import Any

from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.utils import SerializationTool

from kvib.cohort import Cohort
from kvib.estimators.estimate import norm
from kvib.integrations.kit import BadReplyError, KnownClients, checked_length
from kvib.journal.sampler import AnySampler
from kvib.types import Key


class UnbiasedHandler(SyncServerHandler):  # type: ignore[misc]
    """In place of `SyncServerHandler`; x − Σ λ_i/p_i·(x − x_i) instead of a mean.

    FedLab's payloads do not say whose they are. In its standalone pipeline they come in the order
    of the drawn clients, which is taken for granted here; over a network they do not, so let
    clients send their id along and say where it is.

    Args:
        model: as of `SyncServerHandler`.
        global_round: as of `SyncServerHandler`.
        sampler: over clients 0 to N − 1.
        sender: the client of a payload; None: the order of the drawn, standalone only.
        options: `cuda`, `device`, `logger`.
    """

    def __init__(
        self,
        model: Any,
        global_round: int,
        sampler: AnySampler,
        sender: Callable[[Sequence[Any]], int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, global_round, 1.0, **options)
        self.sampler, self.sender = sampler, sender
        self.clients = KnownClients(sampler, numbered=True)

    @property
    def cohort(self) -> Cohort | None:
        """The cohort of this round."""
        return self.clients.cohort

    @property
    def refused(self) -> dict[Key, str]:
        """Why clients of the last round were not heard."""
        return self.clients.refused

    @property
    def num_clients_per_round(self) -> int:
        """The number of clients drawn, which need not be the same in every round."""
        return 0 if self.cohort is None else len(self.cohort)

    def sample_clients(self) -> list[int]:
        """Ids of the drawn, ascending; a round in which no client was drawn leaves the model."""
        if self.num_clients not in (0, len(self.sampler)):
            raise ValueError(
                f"the sampler has {len(self.sampler)} clients, the trainer {self.num_clients}"
            )
        while not self.if_stop:
            round = self.clients.draw()
            if len(round):
                return [int(i) for i in round.cohort.ids]
            round.learn([])
            self.round += 1
        return []

    def global_update(self, buffer: Sequence[Sequence[Any]]) -> None:
        """Take the step; the sampler learns. What is no update of this model is no answer."""
        round, x = self.clients.round, self.model_parameters
        assert round is not None
        senders = round.keys if self.sender is None else map(self.sender, buffer)
        updates: dict[int, Any] = {}
        for client, payload in zip(senders, buffer, strict=True):
            position = round.answers(client)
            if position is None:
                continue  # twice, or not asked
            try:
                updates[position] = _update(x, payload[0])
            except BadReplyError as error:
                round.refuse(position, str(error))
                self._LOGGER.warning(f"kvib: client {client} was not heard: {error}")
        d = round.step(updates)
        SerializationTool.deserialize_model(self._model, x - d)


def _update(x: Any, theirs: Any) -> Any:
    """x − x_i, or an error where that is no update of this model."""
    if theirs.shape != x.shape:
        raise BadReplyError(f"{len(theirs)} parameters, in the model {len(x)}")
    update = x - theirs.to(x)
    checked_length(norm(update))
    return update
