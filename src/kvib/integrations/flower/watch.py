"""What an operator must know of a run, in the log; and when it is better to stop."""

from collections import Counter
from collections.abc import Callable, Mapping
from logging import INFO, WARNING

from flwr.common.logger import log

from kvib.integrations.fleet import News, Standing
from kvib.integrations.flower.report import RoundReport
from kvib.integrations.flower.rounds import Refusal, Round, Silence
from kvib.integrations.offline import shown
from kvib.population import Key

TOO_MUCH = 0.1
"""Share of λ out of reach from which on it is warned of."""
ATTEMPTS = 5
"""Times that a cohort which was cut off is asked again before the round counts as silent."""


class NothingUsableError(RuntimeError):
    """Round after round, clients answer, and not one answer is an update of the model."""


class Watch:
    """Counts what goes wrong, and says it.

    Args:
        quorum: share of the drawn clients that must answer.
        patience: rounds in a row without one usable reply before the run ends; None: it goes on.
    """

    def __init__(self, quorum: float, patience: int | None) -> None:
        if not 0 <= quorum <= 1:
            raise ValueError(f"quorum={quorum} is not a share of the drawn clients, from 0 to 1")
        if patience is not None and (int(patience) != patience or patience < 1):
            raise ValueError(f"patience={patience} is not a number of rounds; 1 or more, or None")
        self._quorum, self._patience = quorum, patience
        self._useless = 0
        self._lost = self._unnamed = False

    def population(self, standing: Standing, news: News) -> None:
        """Who came and went, and who is out of reach."""
        for what, keys in (("joined", news.joined), ("returned", news.returned)):
            if keys:
                log(INFO, "kvib: %d clients %s: %s", len(keys), what, shown(keys))
        if news.left:
            log(WARNING, "kvib: %d clients left: %s", len(news.left), shown(news.left))
        if news.unnamed:
            log(
                INFO if self._unnamed else WARNING,
                "kvib: %d clients joined without a name of their own: %s; after a restart each is "
                "another client. Start SuperNodes with --node-config 'client-id=\"…\"', and call "
                "introduce(app) in the ClientApp",
                *(len(news.unnamed), shown(news.unnamed)),
            )
            self._unnamed = True
        if standing.lost > TOO_MUCH and not self._lost:
            log(
                WARNING,
                "kvib: %.0f %% of the objective is out of reach: %s; steps are too small by that "
                "until these clients return or leave (gone_after=…, strategy.leave(keys))",
                *(100 * standing.lost, shown(standing.missed)),
            )
        self._lost = standing.lost > TOO_MUCH

    def answers(self, round: Round, heard: int, refused: Mapping[int, Refusal]) -> None:
        """Who was not heard, and why; ends a run in which no reply is of use."""
        for position, refusal in refused.items():
            log(INFO, "kvib: client %s was not heard: %s", round.keys[position], refusal.why)
        log(INFO, "kvib: %d of %d clients were heard", heard, len(round.cohort))
        useless = [refusal.why for refusal in refused.values() if refusal.kind is Silence.REFUSED]
        if heard or not useless:
            self._useless = 0 if heard else self._useless
            return
        self._useless += 1
        [(reason, times)] = Counter(useless).most_common(1)
        problem = (
            f"every reply was refused, {self._useless} rounds in a row, and the model stays; most "
            f"often ({times} of {len(useless)}): {reason}"
        )
        log(WARNING, "kvib: %s", problem)
        if self._patience is not None and self._useless >= self._patience:
            raise NothingUsableError(
                f"{problem}. Mend the ClientApp, or give patience=None to go on regardless"
            )

    def is_quorum(self, round: Round, heard: int) -> bool:
        """Whether enough clients answered for a step."""
        drawn = len(round.cohort)
        if heard >= self._quorum * drawn:
            return True
        log(
            WARNING,
            "kvib: %d of %d clients answered, fewer than the quorum of %g: the round is given up",
            *(heard, drawn, self._quorum),
        )
        return False

    def may_ask(self, attempts: int) -> bool:
        """Whether a cohort that was cut off is asked again."""
        return attempts < ATTEMPTS

    def call(self, on_round: Callable[[RoundReport], None] | None, report: RoundReport) -> None:
        """Hand a report on; an error of whoever takes it does not end the run."""
        if on_round is None:
            return
        try:
            on_round(report)
        except Exception as error:  # a dashboard must not stop a training
            log(WARNING, "kvib: on_round failed in round %d: %r", report.round, error)


def keys_of(round: Round, refused: Mapping[int, Refusal]) -> dict[Key, str]:
    """Why clients were not heard, by key."""
    return {round.keys[position]: refusal.why for position, refusal in refused.items()}
