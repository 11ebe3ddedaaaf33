"""FedAvg with unbiased adaptive sampling, in one constructor."""

import inspect
from typing import Any

from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower.strategy import UnbiasedSampling

_OURS = set(inspect.signature(UnbiasedSampling).parameters) - {"strategy"}
"""The names of the options that `UnbiasedSampling` takes."""


class KVibFedAvg(UnbiasedSampling):
    """Runs FedAvg with unbiased adaptive sampling.

    It takes the arguments of FedAvg, and those of `UnbiasedSampling` by keyword.

    Args:
        fedavg: The positional arguments of FedAvg.
        options: The keyword arguments of FedAvg and of `UnbiasedSampling`.

    Examples:
        >>> from kvib.integrations.flower import KVibFedAvg
        >>> strategy = KVibFedAvg(fraction_train=0.1, min_available_nodes=10, journal="run.kvib")
        >>> strategy.budget(clients=200)
        20
    """

    def __init__(self, *fedavg: Any, **options: Any) -> None:
        ours = {name: options.pop(name) for name in _OURS & options.keys()}
        super().__init__(FedAvg(*fedavg, **options), **ours)
