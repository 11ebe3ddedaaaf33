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
    """Replaces `SyncServerHandler`, and steps to x − Σ λ_i/p_i·(x − x_i) instead of a mean.

    A payload of FedLab does not name its client. In the standalone pipeline payloads arrive in the
    order of the drawn clients, and this order is assumed here. Over a network they do not: let
    clients send their id along, and give a `sender` that reads it.

    Args:
        model: The model, as `SyncServerHandler` takes it.
        global_round: The number of rounds, as `SyncServerHandler` takes it.
        sampler: The sampler over clients 0 to N − 1.
        sender: The function that returns the client of a payload. None means that payloads arrive
            in the order of the drawn clients, as in the standalone pipeline.
        options: The options `cuda`, `device` and `logger` of `SyncServerHandler`.
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
        """The cohort of this round. None before the first."""
        return self.clients.cohort

    @property
    def refused(self) -> dict[Key, str]:
        """The reasons why clients of the last round did not answer, by id."""
        return self.clients.refused

    @property
    def num_clients_per_round(self) -> int:
        """The number of drawn clients, which can differ from round to round."""
        return 0 if self.cohort is None else len(self.cohort)

    def sample_clients(self) -> list[int]:
        """Draw a cohort, and return the ids of its clients, ascending.

        A round in which no client is drawn leaves the model as it is, and the next one is drawn.
        """
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
        """Take the step, and let the sampler learn. An answer that is not an update is left out.

        Args:
            buffer: The payloads of the clients.
        """
        round, x = self.clients.round, self.model_parameters
        assert round is not None
        senders = round.keys if self.sender is None else map(self.sender, buffer)
        updates: dict[int, Any] = {}
        for client, payload in zip(senders, buffer, strict=True):
            position = round.answers(client)
            if position is None:
                continue  # it answered before, or was not drawn
            try:
                updates[position] = _update(x, payload[0])
            except BadReplyError as error:
                round.refuse(position, str(error))
                self._LOGGER.warning(f"kvib: client {client} did not answer: {error}")
        d = round.step(updates)
        SerializationTool.deserialize_model(self._model, x - d)


def _update(x: Any, theirs: Any) -> Any:
    """x − x_i. What is not an update of this model is refused."""
    if theirs.shape != x.shape:
        raise BadReplyError(f"{len(theirs)} parameters, in the model {len(x)}")
    update = x - theirs.to(x)
    checked_length(norm(update))
    return update
