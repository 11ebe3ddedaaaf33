"""FedAvg with our sampling, in one constructor."""

import inspect
from typing import Any

from flwr.serverapp.strategy import FedAvg

from kvib.integrations.flower.strategy import UnbiasedSampling

_OURS = set(inspect.signature(UnbiasedSampling).parameters) - {"strategy"}


class KVibFedAvg(UnbiasedSampling):
    """FedAvg with unbiased adaptive sampling: takes FedAvg's arguments, and ours by keyword.

    Examples:
        >>> strategy = KVibFedAvg(fraction_train=0.1, min_available_nodes=10, journal="run.kvib")
    """

    def __init__(self, *fedavg: Any, **options: Any) -> None:
        ours = {name: options.pop(name) for name in _OURS & options.keys()}
        super().__init__(FedAvg(*fedavg, **options), **ours)
