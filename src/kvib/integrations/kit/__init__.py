"""The parts from which adapters to frameworks are built. It imports no framework: see docs/kit.md.

`Fleet` is for clients that come and go. `KnownClients` is for clients that are known beforehand.
Both draw a `Round`. `Visible().begin(round, model)` turns the answers to a round into a step.
"""

from kvib.integrations.kit.arrays import BadReplyError, Model, checked_length, running_statistics
from kvib.integrations.kit.budgets import Budgets, budget_of
from kvib.integrations.kit.combining import (
    Answer,
    Combination,
    Hidden,
    Outcome,
    Visible,
)
from kvib.integrations.kit.fleet import Fleet
from kvib.integrations.kit.known import KnownClients
from kvib.integrations.kit.means import alike, averaged
from kvib.integrations.kit.offline import EstimateAvailability, Offline, Renormalise
from kvib.integrations.kit.options import FleetOptions, Guards, default_guard
from kvib.integrations.kit.roster import Introduction
from kvib.integrations.kit.round import Refusal, Round, Silence
from kvib.integrations.kit.standing import News, Standing
from kvib.integrations.kit.subsets import agreed, must_agree
from kvib.integrations.kit.watch import NothingUsableError, Watch

__all__ = [
    "Answer",
    "BadReplyError",
    "Budgets",
    "Combination",
    "EstimateAvailability",
    "Fleet",
    "FleetOptions",
    "Guards",
    "Hidden",
    "Introduction",
    "KnownClients",
    "Model",
    "News",
    "NothingUsableError",
    "Offline",
    "Outcome",
    "Refusal",
    "Renormalise",
    "Round",
    "Silence",
    "Standing",
    "Visible",
    "Watch",
    "agreed",
    "alike",
    "averaged",
    "budget_of",
    "checked_length",
    "default_guard",
    "must_agree",
    "running_statistics",
]
