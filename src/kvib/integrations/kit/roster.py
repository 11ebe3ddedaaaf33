"""The address of each client, and the nodes that must be asked which client they are."""

from collections.abc import Collection, Hashable, Iterable
from typing import Any, NamedTuple

from kvib.checks import warn
from kvib.types import Key

Address = Hashable
"""The place where a client is reached now. Its key is the name that stays."""
LONGEST_WAIT = 64
"""The most rounds until a node that has not introduced itself is asked again."""
ASK_AGAIN = 100
"""Rounds after which a node is asked again: its data may have grown, or its name changed."""


class Introduction(NamedTuple):
    """Holds the name and the size of its data that a client reports.

    Examples:
        >>> from kvib.integrations.kit import Introduction
        >>> Introduction("10.0.0.7", "berlin", 120.0).key
        'berlin'
    """

    address: Address
    """The place where the client is reached now."""
    key: Key
    """The name of the client, which stays."""
    size: float | None = None
    """The amount of data that the client has. None means that it reported none."""
    named: bool = True
    """Whether the key is the client's own. If not, it is a new client after every restart."""


class Roster:
    """The keys and addresses of the clients, and the nodes that have not introduced themselves."""

    def __init__(self) -> None:
        self._online: set[Address] = set()
        self._keys: dict[Address, Key | None] = {}
        """The key at each address. None means that the node takes no part."""
        self._addresses: dict[Key, Address] = {}
        self._asked = 0
        """The number of rounds in which strangers were asked for."""
        self._waits: dict[Address, tuple[int, int]] = {}
        """For nodes that have not introduced themselves: rounds to wait, and the round it ends."""
        self._answered: dict[Address, int] = {}
        """The round in which each node last introduced itself, or was due to."""
        self._left: set[Key] = set()
        """Clients that were dismissed."""

    def strangers(self, online: Iterable[Address]) -> list[Any]:
        """The nodes to ask now which client they are. Call it once in a round.

        A node that does not answer is asked again after 1, 2, 4, … rounds, at most `LONGEST_WAIT`.
        """
        self._asked += 1
        self._online = set(online)
        due = [
            address
            for address in self._online
            if self._answered.get(address, self._asked) <= self._asked - ASK_AGAIN
            and self._keys.get(address) not in self._left
        ]
        for address in due:  # whatever the answer is, do not ask again at once
            self._answered[address] = self._asked
        for address in self._online - self._keys.keys():
            wait, until = self._waits.get(address, (0, 0))
            if until <= self._asked:
                wait = min(2 * wait, LONGEST_WAIT) or 1
                self._waits[address] = wait, self._asked + wait
                due.append(address)
        return sorted(due)

    def answered(self, address: Address) -> None:
        """Note that a node introduced itself. It takes no part until `found` is called."""
        self._waits.pop(address, None)
        before = self._keys.get(address)
        if before is not None and self._addresses[before] == address:
            del self._addresses[before]  # it may have another name now
        self._keys[address], self._answered[address] = None, self._asked

    def found(self, introduced: Introduction) -> None:
        """Note the address of a client that takes part, be it new or the old one."""
        key, address = introduced.key, introduced.address
        before = self._addresses.get(key)
        if before in self._online and before != address:
            warn(
                f"client {key!r} is at {address!r} now, and {before!r} is still online: it was "
                "restarted, or another has taken its name; the new one takes its part"
            )
        self._keys[address], self._addresses[key] = key, address
        self._left.discard(key)

    def dismiss(self, keys: Iterable[Key]) -> None:
        """Keep clients out, also while they are online, until they introduce themselves anew."""
        self._left.update(keys)

    def address(self, key: Key) -> Address | None:
        """The last address of a client. None if it was not met since the start."""
        return self._addresses.get(key)

    def clients(self, online: Collection[Address]) -> list[Key]:
        """The clients at these addresses that can be drawn."""
        return [
            key
            for key, address in self._addresses.items()
            if address in online and key not in self._left
        ]
