"""Every round durable, in one file that also answers questions."""

from kvib.journal.history import About, History, Logged, Table, read
from kvib.journal.journalled import Journalled
from kvib.journal.opening import journalled

__all__ = ["About", "History", "Journalled", "Logged", "Table", "journalled", "read"]
