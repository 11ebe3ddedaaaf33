"""What clients measured while they trained, averaged as the wrapped strategy would."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from kvib.integrations.flower.records import Records
from kvib.integrations.kit import agreed, alike, averaged


class Measured(NamedTuple):
    """What a client sent beside arrays, with one MetricRecord or more, and its coefficient."""

    said: Records
    names: list[str]
    """Those of its MetricRecords."""
    numbers: Mapping[str, Any]
    """What is in that record, where it sent just one."""
    coefficient: float

    def reweighed(self, shared: list[str], key: str) -> RecordDict:
        """As it was sent, with the coefficient for a weight where there is just one record."""
        if len(self.names) != 1:
            return RecordDict(self.said)
        kept = {name: number for name, number in self.numbers.items() if name in shared}
        record = MetricRecord({**kept, key: self.coefficient})
        return RecordDict({**self.said, self.names[0]: record})


def measured(said: Mapping[int, Records], coefficients: list[float]) -> list[Measured]:
    """Those of the clients, by position in the cohort, that measured something."""
    found = []
    for position, records in said.items():
        names = [name for name, part in records.items() if isinstance(part, MetricRecord)]
        if names:
            numbers = dict(records[names[0]]) if len(names) == 1 else {}
            found.append(Measured(records, names, numbers, coefficients[position]))
    return found


def examples(records: list[Measured], key: str) -> Iterator[Any]:
    """What clients give as the weight of their update, where they do."""
    return (one.numbers[key] for one in records if key in one.numbers)


def averages(strategy: FedAvg, records: list[Measured]) -> Mapping[str, Any]:
    """Means by coefficient, or what the strategy's own function makes of the records."""
    key, function = strategy.weighted_by_key, strategy.train_metrics_aggr_fn
    if not records or function is aggregate_metricrecords:
        single = [one for one in records if len(one.names) == 1]
        means = averaged((one.numbers, one.coefficient) for one in single)
        return {name: mean for name, mean in means.items() if name != key}
    alike_named = _alike_named(records)
    shared = alike([one.numbers for one in alike_named])
    return function([one.reweighed(shared, key) for one in alike_named], key)


def _alike_named(records: list[Measured]) -> list[Measured]:
    """Those whose MetricRecords are called as most are.

    A function looks them up by name, so one client with other names could end the run.
    """
    names = [frozenset(one.names) for one in records]
    most = agreed(frozenset().union(*names), names)
    return [one for one, own in zip(records, names, strict=True) if own == most]
