"""What an admin may change from the console: the same as some commands do.

    pause, resume     repair            'ledgerlog repair pause', 'ledgerlog repair resume'
    empty, keep       a bookie          'ledgerlog bookie decommission', with --cancel

``empty`` asks that the bookie gives up everything that it holds, and so does the command; the command also
waits for the end, and then takes the bookie's cookie away.
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
    """Do it, and return what happened, for the person.

    Raises:
        RequestRefused: There is no such change.
        InvalidArgument: There is no such bookie.
        MetadataUnavailable: Nothing was changed.
        MetadataOutcomeUnknown: It may or may not be changed.
    """
    queue = RepairQueue(client)
    match what:
        case "pause" | "resume":
            is_paused = what == "pause"

            def set_pause(settings: RepairSettings) -> RepairSettings:
                return attrs.evolve(settings, paused=is_paused)

            await queue.change_settings(set_pause)
            return "repair is paused" if is_paused else "repair goes on"
        case "empty":
            await queue.drain(check_bookie_id(bookie_id))
            return f"bookie {bookie_id} is being emptied; 'ledgerlog bookie decommission' ends its service"
        case "keep":
            was_asked = await queue.keep(check_bookie_id(bookie_id))
            return f"bookie {bookie_id} stays" if was_asked else f"bookie {bookie_id} was not being emptied"
        case _:
            raise RequestRefused(404, f"there is no change {what[:32]!r}")
