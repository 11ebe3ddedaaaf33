"""What a round came to, for a dashboard."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvib.integrations.flower.rounds import Sent
from kvib.integrations.kit import News, Outcome, Standing
from kvib.types import Key


@dataclass(frozen=True)
class RoundReport:
    """One round: who was drawn, who was heard, and how good the estimate is."""

    round: int
    """The sampler's number of the round; it goes on over restarts."""
    server_round: int
    """Flower's number of the round."""
    clients: int
    """Clients in the population, those offline included."""
    online: int
    """Nodes online at the draw."""
    drawn: Mapping[Key, float]
    """The drawn clients, and the expected count p of each."""
    answered: tuple[Key, ...]
    refused: Mapping[Key, str]
    """The others, and why they were not heard."""
    coefficients: float
    """Σ coefficient over those heard: 1 on average."""
    variance: float
    """Estimated sampling noise of the step; NaN where it is not known."""
    cut: float
    """What the guard took off the step."""
    offline: float
    """Share of λ that was offline at the draw."""
    lost: float
    """Share of λ of clients that are offline for longer than chance explains."""
    unanswered: float
    """Share of the drawn clients' λ that was not heard."""
    joined: tuple[Key, ...]
    """Clients that came since the last round, for the first time or again."""
    left: tuple[Key, ...]
    stepped: bool
    """Whether the model moved: False below the quorum, where no client answered, and where `Hidden`
    lacks an update of the sum."""

    def metrics(self) -> dict[str, int | float]:
        """What goes into Flower's MetricRecord of the round."""
        return {
            "kvib-round": self.round,
            "kvib-cohort": len(self.drawn),
            "kvib-missing": len(self.drawn) - len(self.answered),
            "kvib-coefficients": self.coefficients,
            "kvib-variance": self.variance,
            "kvib-cut": self.cut,
            "kvib-online": self.online,
            "kvib-clients": self.clients,
            "kvib-offline": self.offline,
            "kvib-lost": self.lost,
            "kvib-unanswered": self.unanswered,
            "kvib-joined": len(self.joined),
            "kvib-left": len(self.left),
        }


def reported(
    sent: Sent,
    server_round: int,
    answered: list[int],
    outcome: Outcome | None,
    standing: Standing,
    news: News,
) -> RoundReport:
    """The report of a round; without an outcome it was given up.

    Args:
        sent: the round, with those refused that were not heard.
        server_round: Flower's number.
        answered: positions of those who answered.
        outcome: the step.
        standing: who could be drawn.
        news: who came and left before the draw.
    """
    round, cohort, at = sent.round, sent.round.cohort, np.array(answered, np.int64)
    total = float(cohort.weight.sum())
    return RoundReport(
        round=cohort.round,
        server_round=server_round,
        clients=standing.clients,
        online=sent.online,
        drawn=dict(zip(round.keys, cohort.expected.tolist(), strict=True)),
        answered=tuple(round.keys[position] for position in answered),
        refused=round.refused,
        coefficients=float(cohort.coefficients[at].sum()),
        variance=float("nan") if outcome is None else outcome.variance,
        cut=0.0 if outcome is None else outcome.cut,
        offline=standing.offline,
        lost=standing.lost,
        unanswered=1 - float(cohort.weight[at].sum()) / total if total else 0.0,
        joined=(*news.joined, *news.returned),
        left=tuple(news.left),
        # a sum of hidden updates that lacks one is of no use: the step is the number 0 then
        stepped=outcome is not None and bool(answered) and np.ndim(outcome.d) > 0,
    )
