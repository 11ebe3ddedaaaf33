"""Replaying past rounds with other policies (`replay`) and with other budgets (`kvib.plan`)."""

from kvib.checks import renamed
from kvib.replay.intervals import Interval
from kvib.replay.logged import Change, Joined, Left, Logged, Reweighed
from kvib.replay.measurements import Row
from kvib.replay.plan import Curve, Plan, grid
from kvib.replay.replay import Replay, replay
from kvib.replay.terms import Log, Terms

__getattr__ = renamed(__name__, {"Estimate": "Interval"})

__all__ = [
    "Change",
    "Curve",
    "Interval",
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
