"""Online stochastic mirror descent."""

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
"""Enough for 2^120 rounds."""
SMALLEST_LOG = -700.0
"""Relative to the largest: exp of it is still a positive number, and far below any floor."""


class OSMDState(NamedTuple):
    """Every expert's expected counts, and how far each is trusted."""

    experts: FloatArray
    """[E, N], each row with sum K."""
    log_trust: FloatArray
    """[E], logarithms with Σ trust = 1."""
    largest: float
    """ā, the largest π² of the first round; NaN until then."""
    horizon: int
    """T that experts and step sizes are made for."""
    budget: float
    cap: float


@dataclass(frozen=True)
class OSMD(Policy[OSMDState]):
    """Mirror descent on Σπ²/p: multiply by exp(step · gradient), project back, and repeat.

    With u = e/K the expected counts e of expert x follow
    ê_i = e_i·exp(η_x·count_i·π_i²/(e_i²·E_i)), then e = clip(c·ê, αK/N, cap), which is the
    projection in KL divergence. E is the mixture of all experts that was drawn from. Experts differ
    by their step η_x = 2^{x−1}·(αK/N)³/ā·√(ln N/(2T)); their trust falls by
    exp(−(α/N)√(8K/(Tā))·Σ count·π²/(e_i E_i)).

    In expected counts the published sampler (with replacement, no cap) and the one with independent
    draws that the paper suggests (`procedure=kvib.independent`, cap 1) are the same lines. In
    terms of u, as published, the steps are K times smaller and the gradients K times larger.

    Args:
        rounds: T; unknown: doubled as rounds go by, experts then start again from their mixture.
        experts: how many; 1 is plain OSMD. By default enough for any amount of change:
            ⌈½log₂(1 + 4(T−1)ln(N/α)/ln N)⌉ + 1.
        gain: √ā; by default the largest feedback of the first round that has any.
        least: α, the floor in units of the uniform probability.

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
        """Everybody alike."""
        N = len(setting.weights)
        largest = float("nan") if self.gain is None else self.gain**2
        uniform = np.full(N, setting.budget / N)
        T = horizon(self.rounds, round=0)
        empty = OSMDState(uniform[None], np.zeros(1), largest, T, setting.budget, setting.cap)
        return self._restarted(empty, T)

    def _restarted(self, state: OSMDState, T: int) -> OSMDState:
        """Experts for T rounds, all at the mixture of the old ones."""
        N = state.experts.shape[1]
        E = self.experts or 1
        if self.experts is None and N > 1:
            spread = 4 * (T - 1) * math.log(N / self.least) / math.log(N)
            E = math.ceil(0.5 * math.log2(1 + spread)) + 1
        e = np.arange(1, E + 1)
        trust = (1 + 1 / E) / (e * (e + 1))
        mixture = np.exp(state.log_trust) @ state.experts
        return state._replace(experts=np.tile(mixture, (E, 1)), log_trust=np.log(trust), horizon=T)

    def exploration(self, state: OSMDState, round: int) -> Exploration:
        """u ≥ α/N."""
        return Exploration(floor=self.least)

    def scores(self, state: OSMDState, ids: IntArray) -> FloatArray:
        """The mixture of all experts."""
        mixture: FloatArray = np.exp(state.log_trust) @ state.experts[:, ids]
        return mixture

    def check(self, state: OSMDState, clients: int, round: int) -> None:
        """Every expert must have its trust, and spend the budget."""
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
        """One step of every expert, then of the trust in them."""
        T = max(state.horizon, horizon(self.rounds, cohort.round))  # cohorts may come late
        if state.horizon < T:
            state = self._restarted(state, T)
        largest = state.largest
        if math.isnan(largest):
            if feedback.max() == 0:
                return state
            largest = float(feedback.max()) ** 2

        N, K = state.experts.shape[1], state.budget
        floor, E = self.least * K / N, len(state.log_trust)
        own = state.experts[:, cohort.ids]  # [E, m]
        steps = 2.0 ** np.arange(E) * math.sqrt(math.log(N) / (2 * T))
        gain = cohort.count * (feedback / math.sqrt(largest)) ** 2  # in ratios, which stay finite
        moved = np.log(state.experts)
        moved[:, cohort.ids] += (
            steps[:, None] * gain * (floor / own) ** 2 * (floor / cohort.expected_answers)
        )
        for x in range(E):
            raised = np.exp(np.maximum(moved[x] - moved[x].max(), SMALLEST_LOG))
            state.experts[x] = waterfill(raised, K, floor, state.cap)

        loss = cohort.count * feedback**2 / (own * cohort.expected_answers)  # [E, m]
        rate = self.least / N * math.sqrt(8 * K / (T * largest))
        trust = state.log_trust - rate * loss.sum(axis=1)
        trust -= trust.max()
        trust -= math.log(np.exp(trust).sum())
        return state._replace(log_trust=trust, largest=largest)
