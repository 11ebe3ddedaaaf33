"""Messages to the nodes of a drawn cohort and their replies, also through an outage."""

from logging import INFO

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower.arguments import seconds
from kvib.integrations.flower.asking import ask
from kvib.integrations.flower.rounds import Replies, Sent, sorted_replies
from kvib.integrations.flower.waiting import nodes_online, now, pause
from kvib.integrations.kit import Fleet, Hidden, Silence, Visible

ATTEMPTS = 5
"""The number of times that a cohort which was cut off is asked again before it counts as silent."""
NO_CLIENT = "none of them is a client, since none has said who it is or all were refused"
"""The reason for waiting although enough nodes are online."""


class Sender:
    """Finds the nodes online, addresses a cohort, and asks again where an outage cut it off.

    Args:
        fleet: The clients.
        strategy: The wrapped strategy, which sets how many nodes a round needs.
        updates: The way in which the server sees updates. With `Hidden` clients must know their
            coefficients.
        query_timeout: The seconds to wait for new nodes to introduce themselves.
        deadline: The seconds for the answers of a round. None means the timeout of
            `Strategy.start`.
    """

    def __init__(
        self,
        fleet: Fleet,
        strategy: FedAvg,
        updates: Visible | Hidden,
        query_timeout: float,
        deadline: float | None,
    ) -> None:
        self._fleet, self._strategy, self._updates = fleet, strategy, updates
        self._query_timeout, self._deadline = query_timeout, seconds(deadline)
        self.timeout = self._deadline
        """The seconds for the answers of a round. None before `begin` without a deadline."""
        self._problem = "nodes say nothing"
        """The last reason why a node is still unknown."""

    def begin(self, timeout: float) -> float:
        """The seconds for the answers of a round: the deadline, or the timeout of `start`."""
        self.timeout = timeout if self._deadline is None else self._deadline
        return self.timeout

    def online(self, grid: Grid, cut_off: Sent | None = None) -> set[int]:
        """The ids of the nodes online, as soon as they are enough and were asked for their names.

        Args:
            grid: The grid that lists the nodes.
            cut_off: A round whose cohort was cut off and is waited for.
        """
        wanted = max(self._strategy.min_available_nodes, self._strategy.min_train_nodes)
        since: list[float] = []

        def lacking(online: set[int]) -> str | None:
            since.append(now())  # the first is when enough nodes are back after an outage
            introduced = ask(grid, self._fleet.strangers(online), self._query_timeout)
            self._fleet.meet(introduced.introductions)
            self._problem = next(reversed(introduced.problems.values()), self._problem)
            if not self._fleet.clients(online):
                return f"{NO_CLIENT}; the last reason: {self._problem}"
            if cut_off is None or self._is_back(cut_off, online) or self._is_over(since[0]):
                return None
            return (
                f"fewer than half of the drawn clients are back, and of the {cut_off.online} nodes"
            )

        return nodes_online(grid, wanted, lacking)

    def _is_back(self, sent: Sent, online: set[int]) -> bool:
        """Whether an outage is over: half of the drawn clients are back, or half of the nodes.

        Nodes come back one by one, and the first ones say nothing about the others.
        """
        at = {self._fleet.address(key) for key in sent.round.keys}
        return 2 * len(at & online) >= len(at) or 2 * len(online) >= sent.online

    def _is_over(self, since: float) -> bool:
        """Whether clients that are waited for would be late. They may have departed for good."""
        return self.timeout is not None and now() - since >= self.timeout

    def messages(self, sent: Sent, online: set[int]) -> list[Message]:
        """The messages to the clients of a cohort that are online."""
        sent.messages = {}
        for position, key in enumerate(sent.round.keys):
            node = self._fleet.address(key)
            if isinstance(node, int) and node in online:
                sent.messages[position] = self._addressed(sent, position, node)
        return list(sent.messages.values())

    def _addressed(self, sent: Sent, position: int, node: int) -> Message:
        """The message to one client, with its coefficient where it must know it."""
        metadata, content, cohort = sent.template.metadata, sent.template.content, sent.round.cohort
        if self._updates.tells:
            terms = ConfigRecord(
                {
                    "coefficient": float(cohort.coefficients[position]),
                    "position": position,
                    "size": len(cohort),
                    "round": cohort.round,
                    "buffers": sorted(sent.model.buffers),
                }
            )
            content = RecordDict({**content, "kvib": terms})
        return Message(content, node, metadata.message_type, ttl=metadata.ttl)

    def reached(self, grid: Grid, sent: Sent, replies: Replies) -> Replies:
        """The replies, asked for again if an outage cut off the whole cohort: it loses no round."""
        attempts = 0
        while self._is_cut_off(replies.kinds, attempts):
            if replies.kinds == {Silence.OFFLINE}:  # the grid may list nodes that cannot be reached
                pause(attempts)
            attempts += 1
            messages = self.messages(sent, self.online(grid, sent))
            if not messages:  # other nodes are online, so there is no outage any more
                break
            log(INFO, "kvib: no drawn client was reached; they are asked again")
            again = grid.send_and_receive(messages, timeout=self.timeout)
            replies = sorted_replies(sent, again)
        return replies

    def _is_cut_off(self, kinds: set[Silence], attempts: int) -> bool:
        """Whether a cohort in which no client answered is worth another attempt.

        A node that dies with a message and comes back never answers it. A cohort that is silent
        until the timeout may have been cut off, too. With a deadline it is late instead.
        """
        if kinds == {Silence.OFFLINE}:
            return attempts < ATTEMPTS
        silent = bool(kinds) and Silence.REFUSED not in kinds
        return silent and attempts == 0 and self._deadline is None
