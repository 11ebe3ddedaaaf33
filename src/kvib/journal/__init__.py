"""Every round durable, in one file that also answers questions."""

from kvib.journal.history import About, History, Logged, Table, read
from kvib.journal.opening import journalled
from kvib.journal.sampler import Journalled

__all__ = ["About", "History", "Journalled", "Logged", "Table", "journalled", "read"]
