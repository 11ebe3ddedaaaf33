"""A biased selector in the round loop, for comparison."""

import math
from typing import Any

import numpy as np

from kvib.clients.rates import Rates
from kvib.cohort import Cohort, Guarantee
from kvib.estimators.estimate import self_normalised
from kvib.estimators.streaming import Coefficients, Context, Ended, Estimation
from kvib.selectors import Selector
from kvib.sim.chooser import Coming, Looked
from kvib.sim.training import diverged
from kvib.types import Arrays, FloatArray, IntArray


class Selected:
    """Chooses clients without probabilities: a mean of their updates, and no exact metrics.

    Who is asked before a choice evaluates the model on all of its own data; `Record.asked` counts
    these clients. Sketches of updates are made by the server, and cost clients nothing.
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
        """For sketches."""
        return self.sampler.rule.sketch > 0

    def look(self, coming: Coming) -> Looked:
        """Losses of those that the rule asks. Exact metrics need probabilities: there are none."""
        asked = self.sampler.asks(coming.there)
        if not len(asked):
            return Looked(None, {"asked": 0.0})
        losses = coming.training.engine.losses(coming.model, asked)
        bad = asked[~np.isfinite(losses)]
        if len(bad):
            raise diverged(int(bad[0]), coming.round)
        signals = dict(zip(asked.tolist(), losses.tolist(), strict=True))
        return Looked(signals, {"asked": float(len(asked))})

    def draw(self, coming: Coming, signals: dict[int, float] | None) -> Cohort:
        """A choice among those who are there."""
        return self.sampler.draw(coming.there, signals=signals)

    def begin(self, cohort: Cohort, coefficients: Coefficients) -> Estimation:
        """A sum of updates, with sketches of them if the rule learns from these."""
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
        """The rule learns the sketches of those who answered."""
        came = ~np.isnan(ended.norms) if self.wants_updates else np.zeros(len(ended.norms), bool)
        self._learn(
            ended.cohort, [s if c else None for s, c in zip(ended.sketches, came, strict=True)]
        )
        return self.guarantee

    def update(self, cohort: Cohort, norms: FloatArray) -> None:
        """Norms say nothing to a selector: it has learned what it was told before the draw."""
        self._learn(cohort, [None] * len(cohort))

    def _learn(self, cohort: Cohort, signals: list[Any]) -> None:
        self.sampler.update(cohort, signals)

    def about(self) -> dict[str, Any]:
        """What the selector was given."""
        return {"selector": repr(self.sampler.rule)}

    def check_checkpoint(self) -> None:
        """All that a selector knows is in its checkpoint."""

    def packed(self) -> Arrays:
        """The selector as arrays."""
        return self.sampler.packed()

    def unpacked(self, arrays: Arrays) -> "Selected":
        """The selector that was packed."""
        return Selected(self.sampler.unpacked(arrays))
