"""The changes that an admin may make from the console. Commands make the same changes.

    pause, resume     repair            'ledgerlog repair pause', 'ledgerlog repair resume'
    empty             a bookie          'ledgerlog bookie decommission'
    keep              a bookie          'ledgerlog bookie decommission --cancel'

``empty`` asks repair to move all entries away from the bookie. The command does the same, waits until the
bookie is empty, and then removes the bookie's cookie.
"""

from __future__ import annotations

import attrs

from ledgerlog.admin.gate import RequestRefused
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.model.ids import check_bookie_id
from ledgerlog.model.repair import RepairSettings
from ledgerlog.repair.queue import RepairQueue

__all__ = ["change"]


async def change(client: LedgerClient, what: str, bookie_id: str) -> str:
    """Make a change, and return what happened, as text for a person.

    Raises:
        RequestRefused: There is no change of this name.
        InvalidArgument: There is no such bookie, or it is decommissioned already.
        MetadataUnavailable: Nothing was changed.
        MetadataOutcomeUnknown: The change may or may not have been made.
    """
    queue = RepairQueue(client)
    match what:
        case "pause" | "resume":
            is_paused = what == "pause"

            def set_pause(settings: RepairSettings) -> RepairSettings:
                return attrs.evolve(settings, paused=is_paused)

            await queue.change_settings(set_pause)
            return "repair is paused" if is_paused else "repair continues"
        case "empty":
            await queue.drain(check_bookie_id(bookie_id))
            return f"bookie {bookie_id} is being emptied; 'ledgerlog bookie decommission' ends its service"
        case "keep":
            was_asked = await queue.keep(check_bookie_id(bookie_id))
            return f"bookie {bookie_id} stays" if was_asked else f"bookie {bookie_id} was not being emptied"
        case _:
            raise RequestRefused(404, f"there is no change {what[:32]!r}")
