"""All mutants."""

from __future__ import annotations

from tests.mutants import (
    archive_rules,
    audit_rules,
    autorecovery_rules,
    blocking_rules,
    bookie_rules,
    client_rules,
    disk_rules,
    harmless,
    ledger_rules,
    log_rules,
    loss_rules,
    machine_rules,
    metadata_rules,
    people_rules,
    repair_rules,
    restore_rules,
    retention_rules,
    splice_rules,
    storage_rules,
    version_rules,
)

MUTANTS = (
    *ledger_rules.MUTANTS,
    *client_rules.MUTANTS,
    *bookie_rules.MUTANTS,
    *storage_rules.MUTANTS,
    *disk_rules.MUTANTS,
    *log_rules.MUTANTS,
    *retention_rules.MUTANTS,
    *splice_rules.MUTANTS,
    *loss_rules.MUTANTS,
    *machine_rules.MUTANTS,
    *repair_rules.MUTANTS,
    *autorecovery_rules.MUTANTS,
    *archive_rules.MUTANTS,
    *audit_rules.MUTANTS,
    *metadata_rules.MUTANTS,
    *restore_rules.MUTANTS,
    *people_rules.MUTANTS,
    *blocking_rules.MUTANTS,
    *version_rules.MUTANTS,
    *harmless.MUTANTS,
)
