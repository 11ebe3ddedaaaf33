"""What clients measured while they trained, averaged as the wrapped strategy would."""

from collections.abc import Mapping
from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from kvib.integrations.combining import alike, averaged

Measured = list[tuple[dict[str, Any], float]]
"""What each client measured, and its coefficient."""


def measured(heard: Mapping[int, list[MetricRecord]], coefficients: list[float]) -> Measured:
    """The records of clients that sent just one, by position in the cohort."""
    return [
        (dict(records[0]), coefficients[position])
        for position, records in heard.items()
        if len(records) == 1
    ]


def averages(strategy: FedAvg, records: Measured) -> Mapping[str, Any]:
    """Means by coefficient, or what the strategy's own function makes of the records."""
    key, function = strategy.weighted_by_key, strategy.train_metrics_aggr_fn
    if records and function is not aggregate_metricrecords:
        shared = alike([record for record, _ in records])
        contents = [
            RecordDict({"metrics": MetricRecord({**{n: r[n] for n in shared}, key: weight})})
            for r, weight in records
        ]
        return function(contents, key)
    return {name: mean for name, mean in averaged(records).items() if name != key}
