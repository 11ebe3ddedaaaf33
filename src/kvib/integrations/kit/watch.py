"""The lines that an operator needs in the log of a run, and the decision to end a useless run."""

from collections import Counter
from collections.abc import Callable, Mapping
from logging import INFO, WARNING

from kvib.integrations.kit.offline import shown
from kvib.integrations.kit.round import Refusal, Silence
from kvib.integrations.kit.standing import News, Standing
from kvib.types import Key

TOO_MUCH = 0.1
"""The share of λ that must be lost before the log warns."""
DEFAULT_PATIENCE = 10
"""The number of rounds in a row without a usable reply after which a run ends, by default."""


class NothingUsableError(RuntimeError):
    """Raised when clients answer round after round, and no answer is an update of the model."""


class Watch:
    """Counts what goes wrong in a run, and reports it as lines for a log.

    Args:
        say: The function that writes a line. It takes a level of `logging` and the line.
        quorum: The share of the drawn clients that must answer, from 0 to 1.
        patience: The number of rounds in a row in which every reply is refused before the run ends
            with `NothingUsableError`. None means that the run goes on. After this many rounds in a
            row in which clients are only silent the log warns, and the run goes on.
        naming: The way in which a client gets a name of its own in this framework, for the log.

    Examples:
        >>> from kvib.integrations.kit import Refusal, Silence, Watch
        >>> watch = Watch(lambda level, line: print(line), quorum=0.5)
        >>> watch.answers(4, {"bob": Refusal(Silence.LATE, "no answer in time")})
        client bob did not answer: no answer in time
        3 of 4 clients answered
        >>> watch.is_quorum(drawn=4, answered=3)
        True
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
        """Report which clients joined, returned and left, and which share of λ is lost.

        Args:
            standing: The share of the objective that could be drawn in this round.
            news: The changes of the population since the last round.
        """
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
        """Report which clients did not answer, and end a run in which every reply is refused.

        Args:
            drawn: The number of drawn clients.
            refused: The clients that did not answer, and the reason of each.
        """
        for key, refusal in refused.items():
            self._say(INFO, f"client {key} did not answer: {refusal.why}")
        answered = drawn - len(refused)
        self._say(INFO, f"{answered} of {drawn} clients answered")
        useless = [refusal.why for refusal in refused.values() if refusal.kind is Silence.REFUSED]
        if answered:
            self._useless = self._silent = 0
        elif useless:
            self._refuse(useless)
        elif refused:
            self._count_silence(next(iter(refused.values())).why)

    def _count_silence(self, why: str) -> None:
        """Count a round in which no client answered, and warn after every `patience` of them."""
        self._silent += 1
        if self._silent % (self._patience or DEFAULT_PATIENCE) == 0:
            self._say(
                WARNING,
                f"no client answered in {self._silent} rounds in a row, and the model stays; the "
                f"last reason: {why}. Is the deadline shorter than training takes?",
            )

    def _refuse(self, reasons: list[str]) -> None:
        """Warn of a round in which every reply was refused, and end the run after too many."""
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
        """Return whether enough clients answered for a step, and warn if not.

        Args:
            drawn: The number of drawn clients.
            answered: The number of drawn clients that answered.
        """
        if answered >= self._quorum * drawn:
            return True
        self._say(
            WARNING,
            f"{answered} of {drawn} clients answered, fewer than the quorum of {self._quorum:.0%}: "
            "the round is given up",
        )
        return False
