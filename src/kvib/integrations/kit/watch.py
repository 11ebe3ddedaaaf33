"""What an operator must know of a run, as lines of a log; and when it is better to stop."""

from collections import Counter
from collections.abc import Callable, Mapping
from logging import INFO, WARNING

from kvib.integrations.kit.offline import shown
from kvib.integrations.kit.round import Refusal, Silence
from kvib.integrations.kit.standing import News, Standing
from kvib.types import Key

TOO_MUCH = 0.1
"""Share of λ out of reach from which on it is warned of."""
DEFAULT_PATIENCE = 10
"""Rounds in a row."""


class NothingUsableError(RuntimeError):
    """Round after round, clients answer, and not one answer is an update of the model."""


class Watch:
    """Counts what goes wrong, and says it.

    Args:
        say: takes a level of `logging` and a line.
        quorum: share of the drawn clients that must answer.
        patience: rounds in a row without one usable reply before the run ends; None: it goes on.
            Rounds in which clients are only silent are warned of instead.
        naming: how a client gets a name of its own in this framework, for the log.
    """

    def __init__(
        self,
        say: Callable[[int, str], None],
        quorum: float = 0.0,
        patience: int | None = DEFAULT_PATIENCE,
        naming: str = "Give each a name that stays",
    ) -> None:
        if not (isinstance(quorum, int | float) and 0 <= quorum <= 1):
            raise ValueError(f"quorum={quorum!r} is not a share of the drawn clients, from 0 to 1")
        if patience is not None and (not isinstance(patience, int) or patience < 1):
            raise ValueError(f"patience={patience!r} is not a number of rounds; 1 or more, or None")
        self._say, self._quorum, self._patience = say, quorum, patience
        self._naming = naming
        self._useless = self._silent = 0
        self._lost = self._unnamed = False

    def population(self, standing: Standing, news: News) -> None:
        """Say who came and went, and who is out of reach."""
        changes = {"joined": news.joined, "returned": news.returned, "left": news.left}
        for what, keys in changes.items():
            if keys:
                level = WARNING if what == "left" else INFO
                self._say(level, f"{len(keys)} clients {what}: {shown(keys)}")
        if news.unnamed:
            self._say(
                INFO if self._unnamed else WARNING,
                f"{len(news.unnamed)} clients joined without a name of their own: "
                f"{shown(news.unnamed)}; after a restart each is another client. {self._naming}",
            )
            self._unnamed = True
        if standing.lost > TOO_MUCH and not self._lost:
            self._say(
                WARNING,
                f"{standing.lost:.0%} of the objective is out of reach: {shown(standing.missed)}; "
                "steps are too small by that until these clients return or leave",
            )
        self._lost = standing.lost > TOO_MUCH

    def answers(self, drawn: int, refused: Mapping[Key, Refusal]) -> None:
        """Say who was not heard, and why; end a run in which no reply is of use."""
        for key, refusal in refused.items():
            self._say(INFO, f"client {key} was not heard: {refusal.why}")
        answered = drawn - len(refused)
        self._say(INFO, f"{answered} of {drawn} clients were heard")
        useless = [refusal.why for refusal in refused.values() if refusal.kind is Silence.REFUSED]
        if answered:
            self._useless = self._silent = 0
        elif useless:
            self._refuse(useless)
        elif refused:
            self._count_silence(next(iter(refused.values())).why)

    def _count_silence(self, why: str) -> None:
        """Warn now and then of rounds in a row in which not one client was heard."""
        self._silent += 1
        if self._silent % (self._patience or DEFAULT_PATIENCE) == 0:
            self._say(
                WARNING,
                f"no client was heard in {self._silent} rounds in a row, and the model stays; the "
                f"last reason: {why}. Is the deadline shorter than training takes?",
            )

    def _refuse(self, reasons: list[str]) -> None:
        self._useless += 1
        [(reason, times)] = Counter(reasons).most_common(1)
        problem = (
            f"every reply was refused, {self._useless} rounds in a row, and the model stays; most "
            f"often ({times} of {len(reasons)}): {reason}"
        )
        self._say(WARNING, problem)
        if self._patience is not None and self._useless >= self._patience:
            raise NothingUsableError(
                f"{problem}. Mend the clients, or give patience=None to go on regardless"
            )

    def is_quorum(self, drawn: int, answered: int) -> bool:
        """Whether enough clients answered for a step."""
        if answered >= self._quorum * drawn:
            return True
        self._say(
            WARNING,
            f"{answered} of {drawn} clients answered, fewer than the quorum of {self._quorum:.0%}: "
            "the round is given up",
        )
        return False
