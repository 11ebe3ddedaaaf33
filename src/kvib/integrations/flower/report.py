"""The report of a round, for a dashboard."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvib.integrations.flower.rounds import Sent
from kvib.integrations.kit import News, Outcome, Standing
from kvib.types import Key


@dataclass(frozen=True)
class RoundReport:
    """Reports one round: the clients drawn, the clients that answered, and the noise of the step.

    Examples:
        >>> from kvib.integrations.flower import RoundReport
        >>> report = RoundReport(
        ...     round=7, server_round=2, clients=10, online=9, drawn={"ann": 0.4, "bob": 0.6},
        ...     answered=("ann",), refused={"bob": "no answer in time"}, coefficients=0.9,
        ...     variance=0.02, cut=0.0, offline=0.1, lost=0.0, unanswered=0.5, joined=(), left=(),
        ...     stepped=True,
        ... )
        >>> report.metrics()["kvib-missing"]
        1
    """

    round: int
    """The sampler's number of the round, which goes on over restarts."""
    server_round: int
    """Flower's number of the round."""
    clients: int
    """The number of clients in the population, including those offline."""
    online: int
    """The number of nodes online at the draw."""
    drawn: Mapping[Key, float]
    """The drawn clients, with the expected count p of each."""
    answered: tuple[Key, ...]
    """The drawn clients that answered."""
    refused: Mapping[Key, str]
    """The drawn clients that did not answer, with the reason of each."""
    coefficients: float
    """The sum of the coefficients of the clients that answered, which is 1 on average."""
    variance: float
    """The estimated sampling noise of the step. NaN where it is not known."""
    cut: float
    """What the guard cut off Σ coefficient·‖g‖: a bound on the bias of this round."""
    offline: float
    """The share of λ that was offline at the draw."""
    lost: float
    """The share of λ of clients that have been offline for longer than chance explains."""
    unanswered: float
    """The share of the drawn clients' λ that did not answer."""
    joined: tuple[Key, ...]
    """The clients that joined or returned since the last round."""
    left: tuple[Key, ...]
    """The clients that left since the last round."""
    stepped: bool
    """Whether the model moved. It does not move if answers are fewer than the quorum, if no client
    answered, or if the sum of `Hidden` lacks an update."""

    def metrics(self) -> dict[str, int | float]:
        """Return the numbers that go into Flower's MetricRecord of the round."""
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
    """The report of a round.

    Args:
        sent: The round, in which clients that did not answer are refused.
        server_round: Flower's number of the round.
        answered: The positions of the clients that answered.
        outcome: The step. None if the round was given up.
        standing: The share of the objective that could be drawn.
        news: The changes of the population before the draw.
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
        # A sum of hidden updates that lacks one is useless, and the step is the number 0 then.
        stepped=outcome is not None and bool(answered) and np.ndim(outcome.d) > 0,
    )
