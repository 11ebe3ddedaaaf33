"""Where each client is reached, and whom to ask who it is."""

from collections.abc import Collection, Hashable, Iterable
from typing import Any, NamedTuple

from kvib.checks import warn
from kvib.types import Key

Address = Hashable
"""Where a client is reached now; what it is called for good is its key."""
LONGEST_WAIT = 64
"""Rounds until a node that does not say who it is is asked again."""
ASK_AGAIN = 100
"""Rounds after which a node is asked again: its data may have grown, or its name have changed."""


class Introduction(NamedTuple):
    """What a client said of itself."""

    address: Address
    key: Key
    size: float | None = None
    """How much data it has; None: it did not say."""
    named: bool = True
    """Whether the key is the client's own. If not, it is a new client after every restart."""


class Roster:
    """Keys and addresses of the clients, and of nodes that have not said who they are."""

    def __init__(self) -> None:
        self._online: set[Address] = set()
        self._keys: dict[Address, Key | None] = {}
        """None: the node takes no part."""
        self._addresses: dict[Key, Address] = {}
        self._asked = 0
        self._waits: dict[Address, tuple[int, int]] = {}
        """For nodes that did not say who they are: how long to wait, and until when."""
        self._answered: dict[Address, int] = {}
        """When each node last said who it is."""
        self._left: set[Key] = set()

    def strangers(self, online: Iterable[Address]) -> list[Any]:
        """Nodes to be asked who they are, once a round; who does not say, less and less often."""
        self._asked += 1
        self._online = set(online)
        due = [
            address
            for address in self._online
            if self._answered.get(address, self._asked) <= self._asked - ASK_AGAIN
            and self._keys.get(address) not in self._left
        ]
        for address in due:  # whatever it answers: not again at once
            self._answered[address] = self._asked
        for address in self._online - self._keys.keys():
            wait, until = self._waits.get(address, (0, 0))
            if until <= self._asked:
                wait = min(2 * wait, LONGEST_WAIT) or 1
                self._waits[address] = wait, self._asked + wait
                due.append(address)
        return sorted(due)

    def answered(self, address: Address) -> None:
        """A node said who it is; it takes no part until it is `found`."""
        self._waits.pop(address, None)
        before = self._keys.get(address)
        if before is not None and self._addresses[before] == address:
            del self._addresses[before]  # it may have another name now
        self._keys[address], self._answered[address] = None, self._asked

    def found(self, one: Introduction) -> None:
        """A client is reached at a new address, or still at its old one."""
        key, address, before = one.key, one.address, self._addresses.get(one.key)
        if before in self._online and before != address:
            warn(
                f"client {key!r} is at {address!r} now, and {before!r} is still online: it was "
                "restarted, or another has taken its name; the new one takes its part"
            )
        self._keys[address], self._addresses[key] = key, address
        self._left.discard(key)

    def dismiss(self, keys: Iterable[Key]) -> None:
        """Clients are not to come back by being online, until they introduce themselves anew."""
        self._left.update(keys)

    def address(self, key: Key) -> Address | None:
        """Where a client was seen last; None if it was not seen since the start."""
        return self._addresses.get(key)

    def clients(self, online: Collection[Address]) -> list[Key]:
        """Clients at these addresses that can be drawn."""
        return [
            key
            for key, address in self._addresses.items()
            if address in online and key not in self._left
        ]
