"""Whole clusters under simulated time, network and disks, to test programs that use ledgerlog.

``simulate`` runs a scenario on a ``SimulatedCluster``. The pytest fixture is in
``ledgerlog.testing.pytest_plugin``. See docs/SIMULATION.md.
"""

from bookie.storage.engine.config import StorageConfig
from ledgerlog.testing.cluster import SMALL_STORAGE, SimulatedCluster
from ledgerlog.testing.deterministic import (
    CpuTimeExceeded,
    Deadlock,
    Nondeterminism,
    Outcome,
    SimulatedTimeExceeded,
    Simulation,
    current_simulation,
)
from ledgerlog.testing.disk import EMPTY_IMAGE
from ledgerlog.testing.history import History, NotLinearizable, ServiceCall
from ledgerlog.testing.links import LinkQuality
from ledgerlog.testing.machines import NotDeterministic, check_machine
from ledgerlog.testing.network import EVERYBODY
from ledgerlog.testing.process import NodeCrashed
from ledgerlog.testing.runs import simulate, simulated_cluster
from ledgerlog.testing.trouble import DRAWN_FAULTS, DrawnFaults

__all__ = [
    "DRAWN_FAULTS",
    "EMPTY_IMAGE",
    "EVERYBODY",
    "SMALL_STORAGE",
    "ServiceCall",
    "CpuTimeExceeded",
    "Deadlock",
    "DrawnFaults",
    "History",
    "LinkQuality",
    "NodeCrashed",
    "Nondeterminism",
    "NotDeterministic",
    "NotLinearizable",
    "Outcome",
    "SimulatedCluster",
    "SimulatedTimeExceeded",
    "Simulation",
    "StorageConfig",
    "check_machine",
    "current_simulation",
    "simulate",
    "simulated_cluster",
]
