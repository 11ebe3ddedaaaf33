"""The training metrics of clients, averaged as the wrapped strategy would average them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from kvib.integrations.flower.records import Records
from kvib.integrations.kit import agreed, alike, averaged


class Measured(NamedTuple):
    """The metrics of a client that sent at least one MetricRecord."""

    records: Records
    """The records that the client sent beside arrays, by name."""
    names: list[str]
    """The names of its MetricRecords."""
    numbers: Mapping[str, Any]
    """The content of its MetricRecord. Empty if it sent several."""
    coefficient: float
    """The coefficient of the client."""

    def reweighed(self, shared: list[str], key: str) -> RecordDict:
        """The records as they were sent. A single MetricRecord gets the coefficient as weight."""
        if len(self.names) != 1:
            return RecordDict(self.records)
        kept = {name: number for name, number in self.numbers.items() if name in shared}
        record = MetricRecord({**kept, key: self.coefficient})
        return RecordDict({**self.records, self.names[0]: record})


def measured(sent: Mapping[int, Records], coefficients: list[float]) -> list[Measured]:
    """The metrics of the clients that sent some, from their records by position in the cohort."""
    found = []
    for position, records in sent.items():
        names = [name for name, part in records.items() if isinstance(part, MetricRecord)]
        if names:
            numbers = dict(records[names[0]]) if len(names) == 1 else {}
            found.append(Measured(records, names, numbers, coefficients[position]))
    return found


def examples(clients: list[Measured], key: str) -> Iterator[Any]:
    """The weights under this key that clients give to their updates, where they do."""
    return (client.numbers[key] for client in clients if key in client.numbers)


def averages(strategy: FedAvg, clients: list[Measured]) -> Mapping[str, Any]:
    """The means by coefficient, or the result of the strategy's own function for metrics."""
    key, function = strategy.weighted_by_key, strategy.train_metrics_aggr_fn
    if not clients or function is aggregate_metricrecords:
        single = [client for client in clients if len(client.names) == 1]
        means = averaged((client.numbers, client.coefficient) for client in single)
        return {name: mean for name, mean in means.items() if name != key}
    alike_named = _alike_named(clients)
    shared = alike([client.numbers for client in alike_named])
    return function([client.reweighed(shared, key) for client in alike_named], key)


def _alike_named(clients: list[Measured]) -> list[Measured]:
    """The clients whose MetricRecords have the names that most clients use.

    A function looks records up by name, so one client with other names could end the run.
    """
    names = [frozenset(client.names) for client in clients]
    most = agreed(frozenset().union(*names), names)
    return [client for client, own in zip(clients, names, strict=True) if own == most]
