"""The strategies that cannot be combined with the weights λ/p, and the reasons."""

from types import FrameType

from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    MultiKrum,
    QFedAvg,
    Strategy,
)

ROBUST = (
    "it picks or trims updates by comparing them with each other, and λ/p makes them of different "
    "size on purpose; use FedAvg or its kin inside, and guard=kvib.Guard() against outliers"
)
PRIVATE = (
    "its noise is made for a plain mean of clipped updates, and λ/p changes what one client can "
    "contribute; there is no accounting for that yet, so train without kvib or without it"
)
TREES = "it collects trees, which cannot be averaged, let alone weighted by λ/p"
WITH_NOISE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
REFUSED: dict[type[Strategy], str] = {
    Bulyan: ROBUST,
    FedMedian: ROBUST,
    FedTrimmedAvg: ROBUST,
    MultiKrum: ROBUST,
    QFedAvg: "it reweighs clients by their loss, another objective than Σ λ_i f_i; use FedAvg",
    FedXgbBagging: TREES,
    FedXgbCyclic: TREES,
    **dict.fromkeys(WITH_NOISE, PRIVATE),
}
"""The reasons by strategy. They hold for subclasses too."""


def averaging(strategy: Strategy) -> FedAvg:
    """The strategy. One that cannot take an estimate in place of replies is refused."""
    if isinstance(strategy, type):
        raise ValueError(f"{strategy.__name__} is a class; wrap an instance, {strategy.__name__}()")
    name, module = type(strategy).__name__, type(strategy).__module__
    if module.startswith("flwr.server."):
        raise ValueError(
            f"{module}.{name} is of Flower's old API; use flwr.serverapp.strategy.{name} of the "
            "Message API (Flower 1.22 or newer), with a ClientApp instead of a NumPyClient"
        )
    for kind, reason in REFUSED.items():
        if isinstance(strategy, kind):
            raise ValueError(f"{name} cannot be wrapped: {reason}")
    if not isinstance(strategy, FedAvg):
        raise ValueError(
            f"{name} cannot be wrapped: only FedAvg and its kin (FedAvgM, FedAdam, FedYogi, "
            "FedAdagrad, FedProx) are known to take an average and nothing else"
        )
    if type(strategy).start is not Strategy.start:
        raise ValueError(f"{name} has a start() of its own, which would not be called")
    return strategy


def refuse_noise_around(frame: FrameType | None) -> None:
    """Refuse a call that comes from a wrapper which adds noise.

    Flower's wrappers keep a strategy without calling it, and start rounds themselves. They do not
    name themselves when they call, so only the frame of the call shows them.

    Args:
        frame: The frame of the method that was called.
    """
    caller = None if frame is None or frame.f_back is None else frame.f_back.f_locals.get("self")
    if isinstance(caller, WITH_NOISE):
        raise ValueError(f"{type(caller).__name__} cannot be put around kvib: {PRIVATE}")
