"""Online stochastic mirror descent with several step sizes."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from kvib.cohort import Cohort
from kvib.files import intact
from kvib.files.intact import CLOSE, POSITIVE, Range, demand, or_unknown
from kvib.policies.policy import Exploration, Policy, Setting
from kvib.policies.rules import check_gain, check_rounds, horizon
from kvib.procedures import with_replacement
from kvib.types import FloatArray, IntArray
from kvib.waterfill import waterfill

MOST_EXPERTS = 64
"""The largest number of experts, which is enough for 2^120 rounds."""
SMALLEST_LOG = -700.0
"""Logarithms relative to the largest are cut off here: exp of it is still a positive number, and
far below any floor."""


class OSMDState(NamedTuple):
    """The expected counts of every expert, and the trust in each."""

    experts: FloatArray
    """The expected counts of each expert, [E, N], each row with the sum K."""
    log_trust: FloatArray
    """The logarithm of the trust in each expert, [E], with Σ trust = 1."""
    largest: float
    """ā, the largest π² of the first round; NaN until then."""
    horizon: int
    """The number of rounds T that experts and step sizes are made for."""
    budget: float
    """The budget K."""
    cap: float
    """The largest expected count of a client."""


@dataclass(frozen=True)
class OSMD(Policy[OSMDState]):
    """Draw by the mixture of several experts, each of which descends on the sampling cost Σπ²/p.

    Every expert takes mirror descent steps of its own size: it multiplies its expected counts by
    exp(step · gradient) and projects them back. Experts with a low sampling cost are trusted more,
    so that the step size needs no tuning.

    With u = e/K the expected counts e of expert x follow
    ê_i = e_i·exp(η_x·count_i·π_i²/(e_i²·E_i)), then e = clip(c·ê, αK/N, cap), which is the
    projection in KL divergence. E is the mixture of all experts, which the cohort was drawn from.
    Experts differ by their step η_x = 2^{x−1}·(αK/N)³/ā·√(ln N/(2T)). Their trust falls by
    exp(−(α/N)√(8K/(Tā))·Σ count·π²/(e_i E_i)).

    In expected counts the published sampler (with replacement, no cap) and the one with independent
    draws that the K-Vib paper suggests (`procedure=kvib.independent`, cap 1) are the same lines. In
    terms of u, as published, the steps are K times smaller and the gradients K times larger.

    Args:
        rounds: The planned number of rounds T. None means unknown: T then doubles as rounds go by,
            and at each doubling the experts start again from their mixture.
        experts: The number of experts. 1 is plain OSMD. None means enough for any amount of change:
            ⌈½log₂(1 + 4(T−1)ln(N/α)/ln N)⌉ + 1.
        gain: The value of √ā. None means the largest feedback of the first round that has any.
        least: The floor α in units of the uniform probability.

    Examples:
        >>> import numpy as np, kvib
        >>> norms = np.array([1.0, 2.0, 4.0, 8.0])
        >>> policy = kvib.OSMD(rounds=100)
        >>> sampler = kvib.Sampler(policy, weights=[1, 1, 1, 1], budget=2, seed=0)
        >>> for _ in range(100):
        ...     cohort = sampler.draw()
        ...     sampler.update(cohort, norms[cohort.ids])
        >>> sampler.probabilities().round(2)            # expected counts K·u
        array([0.22, 0.24, 0.55, 1.  ])

    References:
        Zhao et al., "Adaptive client sampling in federated learning via online learning with bandit
        feedback", 2022. The rate of trust is as published, and not invariant to the unit of π.
    """

    rounds: int | None = None
    experts: int | None = None
    gain: float | None = None
    least: float = 0.4

    procedure: ClassVar = with_replacement
    ranges: ClassVar = {
        "experts": POSITIVE,
        "log_trust": Range("logarithms of probabilities", high=CLOSE),
        "largest": or_unknown(POSITIVE),
        "horizon": Range("whole and at least 1", low=1.0, whole=True),
        "budget": POSITIVE,
        "cap": Range("positive", low=POSITIVE.low, high=math.inf),
    }

    def __post_init__(self) -> None:
        check_rounds(self.rounds)
        if self.experts is not None and not 1 <= self.experts <= MOST_EXPERTS:
            raise ValueError(
                f"experts={self.experts} is not from 1 to {MOST_EXPERTS}: each moves twice as far "
                "as the one before"
            )
        check_gain(self.gain)
        if not 0 < self.least <= 1:
            raise ValueError(f"least={self.least} is not in (0, 1]")

    def start(self, setting: Setting) -> OSMDState:
        """Start with equal expected counts in every expert."""
        N = len(setting.weights)
        largest = float("nan") if self.gain is None else self.gain**2
        uniform = np.full(N, setting.budget / N)
        T = horizon(self.rounds, round=0)
        empty = OSMDState(uniform[None], np.zeros(1), largest, T, setting.budget, setting.cap)
        return self._restarted(empty, T)

    def _restarted(self, state: OSMDState, T: int) -> OSMDState:
        """The state with experts for T rounds, which all start from the mixture of the old ones."""
        N = state.experts.shape[1]
        E = self.experts or 1
        if self.experts is None and N > 1:
            spread = 4 * (T - 1) * math.log(N / self.least) / math.log(N)
            E = math.ceil(0.5 * math.log2(1 + spread)) + 1
        x = np.arange(1, E + 1)
        trust = (1 + 1 / E) / (x * (x + 1))  # as published, Σ trust = 1
        mixture = np.exp(state.log_trust) @ state.experts
        return state._replace(experts=np.tile(mixture, (E, 1)), log_trust=np.log(trust), horizon=T)

    def exploration(self, state: OSMDState, round: int) -> Exploration:
        """Return the floor α: u ≥ α/N."""
        return Exploration(floor=self.least)

    def scores(self, state: OSMDState, ids: IntArray) -> FloatArray:
        """Return the mixture of all experts."""
        mixture: FloatArray = np.exp(state.log_trust) @ state.experts[:, ids]
        return mixture

    def check(self, state: OSMDState, clients: int, round: int) -> None:
        """Refuse a state in which an expert has no trust, or does not spend the budget."""
        demand(
            state.experts.shape == (len(state.log_trust), clients),
            f"state.experts is of shape {state.experts.shape}, and state.log_trust of "
            f"{len(state.log_trust)} experts",
        )
        super().check(state, clients, round)
        intact.close("state.log_trust", float(np.exp(state.log_trust).sum()), 1.0)
        for expert in state.experts:
            intact.close("state.budget", state.budget, float(expert.sum()))
        demand(state.experts.max() <= state.cap * (1 + CLOSE), "state.experts exceeds state.cap")

    def observe(self, state: OSMDState, cohort: Cohort, feedback: FloatArray) -> OSMDState:
        """Learn by one step of every expert, and then of the trust in them."""
        # The horizon, which an update of an earlier round must not shorten, and ā.
        T = max(state.horizon, horizon(self.rounds, cohort.round))
        if state.horizon < T:
            state = self._restarted(state, T)
        largest = state.largest
        if math.isnan(largest):
            if feedback.max() == 0:
                return state
            largest = float(feedback.max()) ** 2

        # Step: log ê = log e + η_x·count·π²/(e²·E), written in ratios, which stay finite.
        N, K = state.experts.shape[1], state.budget
        floor, E = self.least * K / N, len(state.log_trust)
        own = state.experts[:, cohort.ids]  # [E, m]
        steps = 2.0 ** np.arange(E) * math.sqrt(math.log(N) / (2 * T))
        gain = cohort.count * (feedback / math.sqrt(largest)) ** 2
        moved = np.log(state.experts)
        moved[:, cohort.ids] += (
            steps[:, None] * gain * (floor / own) ** 2 * (floor / cohort.expected_answers)
        )
        # Projection: e = clip(c·ê, αK/N, cap).
        for x in range(E):
            raised = np.exp(np.maximum(moved[x] - moved[x].max(), SMALLEST_LOG))
            state.experts[x] = waterfill(raised, K, floor, state.cap)

        # Trust: it falls with the estimated sampling cost of each expert.
        loss = cohort.count * feedback**2 / (own * cohort.expected_answers)  # [E, m]
        rate = self.least / N * math.sqrt(8 * K / (T * largest))
        trust = state.log_trust - rate * loss.sum(axis=1)
        trust -= trust.max()
        trust -= math.log(np.exp(trust).sum())
        return state._replace(log_trust=trust, largest=largest)
