"""A biased selector as the chooser of the round loop, for comparison."""

import math
from typing import Any

import numpy as np

from kvib.clients.rates import Rates
from kvib.cohort import Cohort, Guarantee
from kvib.estimators.estimate import self_normalised
from kvib.estimators.streaming import Coefficients, Context, Ended, Estimation
from kvib.selectors import Selector
from kvib.sim.chooser import BeforeDraw, UpcomingRound
from kvib.sim.training import diverged
from kvib.types import Arrays, FloatArray, IntArray


class Selected:
    """A selector chooses clients without probabilities, so that no exact metrics exist.

    The step is a mean of the chosen clients' updates. A client that is asked before a choice
    evaluates the model on all of its own data, and `Record.asked` counts these clients. The server
    makes the sketches of updates, which cost clients nothing.

    Args:
        selector: The selector.
    """

    coefficients: Coefficients = staticmethod(self_normalised)
    guarantee: Guarantee = "biased"

    def __init__(self, selector: Selector) -> None:
        self.sampler = selector
        self.rates = Rates(1.0, 1.0, len(selector))
        self.waiting: IntArray = np.empty(0, np.int64)

    @property
    def weights(self) -> FloatArray:
        """λ of all clients, [N]."""
        return self.sampler.weights

    @property
    def wants_updates(self) -> bool:
        """Whether sketches need single updates."""
        return self.sampler.rule.sketch > 0

    def look(self, upcoming: UpcomingRound) -> BeforeDraw:
        """The losses of the clients that the rule asks, and how many these are."""
        asked = self.sampler.asks(upcoming.available)
        if not len(asked):
            return BeforeDraw(None, {"asked": 0.0})
        losses = upcoming.training.engine.losses(upcoming.model, asked)
        bad = asked[~np.isfinite(losses)]
        if len(bad):
            raise diverged(int(bad[0]), upcoming.round)
        signals = dict(zip(asked.tolist(), losses.tolist(), strict=True))
        return BeforeDraw(signals, {"asked": float(len(asked))})

    def draw(self, upcoming: UpcomingRound, signals: dict[int, float] | None) -> Cohort:
        """A cohort of the clients that are available."""
        return self.sampler.draw(upcoming.available, signals=signals)

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """A sum of updates, with sketches of them if the rule learns from sketches."""
        context = Context(
            guard=None,
            typical_step=math.nan,
            memory=None,
            sketch=self.sampler.rule.sketch,
            names=lambda ids: list(ids.tolist()),
            silence=lambda cohort, answered: None,
            end=self._end,
        )
        return Estimation(context, cohort, coefficients)

    def _end(self, ended: Ended) -> Guarantee:
        """Let the rule learn the sketches of the clients that answered."""
        known = ~np.isnan(ended.norms) if self.wants_updates else np.zeros(len(ended.norms), bool)
        pairs = zip(ended.sketches, known, strict=True)
        self._learn(ended.cohort, [sketch if is_known else None for sketch, is_known in pairs])
        return self.guarantee

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """End the round. Norms teach a selector nothing: it got its signals before the draw."""
        self._learn(cohort, [None] * len(cohort))

    def _learn(self, cohort: Cohort, signals: list[Any]) -> None:
        """Hand one signal per client of the cohort to the selector."""
        self.sampler.update(cohort, signals)

    def about(self) -> dict[str, Any]:
        """The rule of the selector, by which a checkpoint is recognised."""
        return {"selector": repr(self.sampler.rule)}

    def check_checkpoint(self) -> None:
        """Accept every selector: its checkpoint holds all that it knows."""

    def packed(self) -> Arrays:
        """The selector as arrays."""
        return self.sampler.packed()

    def unpacked(self, arrays: Arrays) -> "Selected":
        """The selector that was packed."""
        return Selected(self.sampler.unpacked(arrays))
