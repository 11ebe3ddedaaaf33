"""Journals: samplers that live in a file, where every round is durable and can be read again."""

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
