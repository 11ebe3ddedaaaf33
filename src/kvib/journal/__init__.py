"""Every round durable, in one file that also answers questions."""

from kvib.journal.history import About, Given, History, Table, read
from kvib.journal.layout import Upgrade
from kvib.journal.opening import journalled
from kvib.journal.sampler import Journalled
from kvib.journal.switches import Switch
from kvib.logged import Logged

__all__ = [
    "About",
    "Given",
    "History",
    "Journalled",
    "Logged",
    "Switch",
    "Table",
    "Upgrade",
    "journalled",
    "read",
]
