"""What would have been in past rounds: other policies (`replay`), other budgets (`kvib.plan`)."""

from kvib.replay.intervals import Estimate
from kvib.replay.logged import Change, Joined, Left, Logged, Reweighed
from kvib.replay.plan import Curve, Plan, grid
from kvib.replay.replay import Replay, replay
from kvib.replay.tally import Row
from kvib.replay.terms import Log, Terms

__all__ = [
    "Change",
    "Curve",
    "Estimate",
    "Joined",
    "Left",
    "Log",
    "Logged",
    "Plan",
    "Replay",
    "Reweighed",
    "Row",
    "Terms",
    "grid",
    "replay",
]
