"""The way to the nodes of a drawn cohort and back, also through an outage."""

from logging import INFO

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower.arguments import seconds
from kvib.integrations.flower.asking import ask
from kvib.integrations.flower.rounds import Replies, Sent, sorted_replies
from kvib.integrations.flower.waiting import nodes_online, now, rest
from kvib.integrations.kit import Fleet, Hidden, Silence, Visible

ATTEMPTS = 5
"""Times that a cohort which was cut off is asked again before the round counts as silent."""
NO_CLIENT = "none of them is a client, since none has said who it is or all were refused"


class Sender:
    """Finds out who is online, addresses a cohort, and asks again where an outage cut it off.

    Args:
        fleet: the clients.
        strategy: the wrapped one, which says how many nodes a round needs.
        updates: whether clients must know their coefficients.
        query_timeout: seconds to wait for new nodes to introduce themselves.
        deadline: seconds for the answers of a round; None: the timeout of `Strategy.start`.
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
        """Seconds for the answers of a round."""
        self._problem = "nodes say nothing"
        """Why a node is still unknown."""

    def begin(self, timeout: float) -> float:
        """The timeout of a run, given the one that `Strategy.start` was given."""
        self.timeout = timeout if self._deadline is None else self._deadline
        return self.timeout

    def online(self, grid: Grid, cut_off: Sent | None = None) -> set[int]:
        """Node ids, once there are enough of them and all of them were asked who they are.

        Args:
            grid: where to look.
            cut_off: what was sent to a cohort that was cut off, and is waited for.
        """
        wanted = max(self._strategy.min_available_nodes, self._strategy.min_train_nodes)
        since: list[float] = []

        def lacking(online: set[int]) -> str | None:
            since.append(now())  # from when there are enough nodes, however long an outage was
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
        """Whether an outage is over: for half of the drawn clients, or of the nodes there were.

        Nodes come back one by one, and the first ones say nothing about the others.
        """
        at = {self._fleet.address(key) for key in sent.round.keys}
        return 2 * len(at & online) >= len(at) or 2 * len(online) >= sent.online

    def _is_over(self, since: float) -> bool:
        """Whether clients that are waited for would be late; they may be gone for good."""
        return self.timeout is not None and now() - since >= self.timeout

    def messages(self, sent: Sent, online: set[int]) -> list[Message]:
        """Messages to those of a cohort who are online."""
        sent.messages = {}
        for position, key in enumerate(sent.round.keys):
            node = self._fleet.address(key)
            if isinstance(node, int) and node in online:
                sent.messages[position] = self._addressed(sent, position, node)
        return list(sent.messages.values())

    def _addressed(self, sent: Sent, position: int, node: int) -> Message:
        metadata, content, cohort = sent.template.metadata, sent.template.content, sent.round.cohort
        if self._updates.tells:
            said = ConfigRecord(
                {
                    "coefficient": float(cohort.coefficients[position]),
                    "position": position,
                    "size": len(cohort),
                    "round": cohort.round,
                    "buffers": sorted(sent.model.buffers),
                }
            )
            content = RecordDict({**content, "kvib": said})
        return Message(content, node, metadata.message_type, ttl=metadata.ttl)

    def reached(self, grid: Grid, sent: Sent, replies: Replies) -> Replies:
        """Replies, asked for again where the whole cohort was cut off: an outage loses no round."""
        attempts = 0
        while self._is_cut_off(replies.kinds, attempts):
            if replies.kinds == {Silence.OFFLINE}:  # nodes may be listed that cannot be reached
                rest(attempts)
            attempts += 1
            messages = self.messages(sent, self.online(grid, sent))
            if not messages:  # others are online: these clients are gone, not the network
                break
            log(INFO, "kvib: no drawn client was reached; they are asked again")
            again = grid.send_and_receive(messages, timeout=self.timeout)
            replies = sorted_replies(sent, again)
        return replies

    def _is_cut_off(self, kinds: set[Silence], attempts: int) -> bool:
        """Whether a cohort of which not one client answered is worth another attempt.

        A node that dies with a message and comes back never answers it: a cohort that is silent
        until the timeout may have been cut off, too. Beyond a deadline it is late.
        """
        if kinds == {Silence.OFFLINE}:
            return attempts < ATTEMPTS
        silent = bool(kinds) and Silence.REFUSED not in kinds
        return silent and attempts == 0 and self._deadline is None
