"""Who is there and who answers: the two rates behind q."""

import numpy as np
from numpy.typing import ArrayLike

from kvib import rates, storage
from kvib.cohort import Arrays, BoolArray, Cohort, FloatArray, Guarantee, IntArray
from kvib.rates import EstimatedRate


class Reach:
    """q = a·r: clients are available with probability a, and who is drawn answers with r.

    Args:
        response: r: a number, one per client, or to be estimated.
        availability: a, likewise.
        clients: how many there are.
    """

    def __init__(
        self,
        response: ArrayLike | EstimatedRate,
        availability: ArrayLike | EstimatedRate,
        clients: int,
    ) -> None:
        self.response = rates.start(response, clients, "response")
        self.availability = rates.start(availability, clients, "availability")

    def at(self, ids: IntArray) -> FloatArray:
        """q of these clients, [m]."""
        return self.available(ids) * self.answering(ids)

    def available(self, ids: IntArray) -> FloatArray:
        """a of these clients, [m]."""
        return rates.at(self.availability, ids)

    def answering(self, ids: IntArray) -> FloatArray:
        """r of these clients, [m]."""
        return rates.at(self.response, ids)

    @property
    def guarantee(self) -> Guarantee:
        """What division by q gives."""
        known = rates.is_known(self.response) and rates.is_known(self.availability)
        return "unbiased" if known else "consistent"

    @property
    def of_each(self) -> bool:
        """Whether rates were given client by client."""
        return max(len(self.response.known), len(self.availability.known)) > 1

    @property
    def always(self) -> bool:
        """Whether nobody is said to be away at times."""
        return rates.is_known(self.availability) and bool((self.availability.known == 1).all())

    def must_be_listed(self, available: ArrayLike | None) -> None:
        """Refuse a draw that is not told who is there, where the estimate is divided by a."""
        if available is None and not self.always:
            raise ValueError(
                "this sampler divides by the availability of clients, so each draw must be told "
                "who is there: draw(available=…)"
            )

    def before_absence(self, ids: IntArray) -> FloatArray:
        """a of these clients as it was when they were last there, [m]."""
        return rates.before_absence(self.availability, ids)

    def missed(self, ids: IntArray) -> IntArray | None:
        """Rounds in a row that these clients were away, outages not counted, [m]; None where
        availability is not learned."""
        learned = not rates.is_known(self.availability)
        return self.availability.missed[ids] if learned else None

    def left(self, ids: IntArray) -> None:
        """These clients left: their last absence says nothing about how often they are there."""
        self.availability = rates.forgiven(self.availability, ids)

    def came(self, ids: IntArray, present: BoolArray) -> None:
        """Which of these clients were there."""
        self.availability = rates.observe(self.availability, ids, present)

    def heard(self, ids: IntArray, answered: BoolArray) -> None:
        """Which of these clients answered."""
        self.response = rates.observe(self.response, ids, answered)

    def lost(self, cohort: Cohort, answered: BoolArray) -> int:
        """How many are silent whose answer was certain; 0 where the rate of answers is learned."""
        known = rates.is_known(self.response)
        return int(np.count_nonzero(cohort.lost(answered))) if known else 0

    def widen(self, entries: int) -> None:
        """Room for more clients, who were never tried."""
        self.response = rates.widened(self.response, entries)
        self.availability = rates.widened(self.availability, entries)

    def packed(self, clients: int) -> Arrays:
        """As arrays."""
        return {
            **storage.pack("response", rates.cut(self.response, clients)),
            **storage.pack("availability", rates.cut(self.availability, clients)),
        }

    def restore(self, arrays: Arrays, clients: int) -> None:
        """What `packed` packed."""
        self.response, self.availability = (
            rates.checked(
                storage.unpack(name, fresh, rates.of_today(name, arrays), clients), clients, name
            )
            for name, fresh in (("response", self.response), ("availability", self.availability))
        )
