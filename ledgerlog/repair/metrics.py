"""Reads the metrics of auto-recovery in this process."""

from __future__ import annotations

from collections.abc import Iterator

from ledgerlog.metrics import families as f
from ledgerlog.metrics.families import Measurement
from ledgerlog.repair.service import AutoRecovery

__all__ = ["repair_measurements"]


def repair_measurements(service: AutoRecovery) -> Iterator[Measurement]:
    """Yield the measurements of a worker and of a candidate for auditor."""
    worker, auditor = service.worker, service.auditor
    yield Measurement(f.REPAIR_IS_AUDITOR, int(auditor.is_leading))
    if auditor.is_leading:
        yield Measurement(f.REPAIR_UNDER_REPLICATED, auditor.record.affected)
        yield Measurement(f.REPAIR_ABSENT, len(auditor.record.absent))
    yield Measurement(f.REPAIR_TASKS, worker.task_count)
    yield Measurement(f.REPAIR_AT_WORK, worker.busy_count)
    yield Measurement(f.REPAIR_PAUSED, int(worker.pacer.is_paused))
    yield Measurement(f.REPAIR_REPAIRED, worker.repaired)
    yield Measurement(f.REPAIR_ENTRIES, worker.copying.entries)
    yield Measurement(f.REPAIR_BYTES, worker.copying.byte_count)
