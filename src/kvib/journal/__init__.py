"""Every round durable, in one file that also answers questions."""

from kvib.journal.history import About, History, Table, read
from kvib.journal.layout import Upgrade
from kvib.journal.opening import journalled
from kvib.journal.sampler import Journalled
from kvib.journal.switches import Switch
from kvib.replay.logged import Change, Joined, Left, Logged, Reweighed

__all__ = [
    "About",
    "Change",
    "History",
    "Joined",
    "Journalled",
    "Left",
    "Logged",
    "Reweighed",
    "Switch",
    "Table",
    "Upgrade",
    "journalled",
    "read",
]
