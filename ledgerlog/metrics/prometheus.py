"""Turns measurements into prometheus_client's objects, and into the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from ledgerlog.errors import ConnectionClosed, WrongProcess
from ledgerlog.metrics.families import FAMILIES, Family, Measurement, MetricKind, MetricSample, samples

__all__ = ["ClusterCollector", "expose"]


class _Measured(Protocol):
    def metrics(self) -> list[MetricSample]: ...


class ClusterCollector:
    """Brings the metrics of a connected cluster into a registry of prometheus_client.

        prometheus_client.REGISTRY.register(ledgerlog.metrics.prometheus.ClusterCollector(cluster))

    The registry then calls the collector at each scrape, in any thread. Once the cluster is closed, and in a
    forked child, the collector yields no metric. Unregister it if you connect again and register another.
    """

    def __init__(self, cluster: _Measured) -> None:
        """Create it.

        Args:
            cluster: A connected cluster, of ``ledgerlog``, ``ledgerlog.aio`` or ``ledgerlog.blocking``.
        """
        self._cluster = cluster

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that a registry can refuse a second metric of a name."""
        return map(_metric, FAMILIES)

    def collect(self) -> Iterator[Metric]:
        """Read the metrics now."""
        try:
            found = self._cluster.metrics()
        except (ConnectionClosed, WrongProcess):
            found = []  # An error would fail the whole scrape of the registry.
        return _metrics(found)


class _Collector:
    def __init__(self, measurements: list[Measurement]) -> None:
        self._measurements = measurements

    def collect(self) -> Iterator[Metric]:
        return _metrics([sample for each in self._measurements for sample in samples(each)])


def expose(measurements: Iterable[Measurement], accepts: str) -> tuple[bytes, str]:
    """Write measurements as text.

    Args:
        measurements: The measurements, each at most once.
        accepts: The value of the header ``Accept`` of the request.

    Returns:
        The text, and the value of ``Content-Type``. The text is OpenMetrics if the client accepts that, else
        the older format of Prometheus.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(list(measurements)))
    encode: Callable[[CollectorRegistry], bytes]
    try:
        encode, content_type = choose_encoder(accepts)
    except (TypeError, ValueError):  # The header asks for a version that is no number.
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def _metric(family: Family) -> Metric:
    name = family.name.removesuffix("_total") if family.kind is MetricKind.COUNTER else family.name
    return Metric(name, family.meaning, family.kind.value)


def _metrics(found: list[MetricSample]) -> Iterator[Metric]:
    """Yield a metric for each family. The samples of one histogram stay together: OpenMetrics requires it."""
    metrics = {family.name: _metric(family) for family in FAMILIES}
    owners = dict(metrics)
    for family in FAMILIES:
        if family.kind is MetricKind.HISTOGRAM:
            owners |= {f"{family.name}_{part}": metrics[family.name] for part in ("bucket", "count", "sum")}
    for sample in found:
        owners[sample.name].add_sample(sample.name, dict(sample.labels), sample.value)
    return (metric for metric in metrics.values() if metric.samples)
