"""A workload: as ``leaders``, but the processes campaign for the lead of the log (``Log.lead``).

An election decides which process takes the log over. All tasks append through the campaign, also in processes
that do not lead. The campaign refuses an append of such a process, and nothing of that record may be in the
log.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from ledgerlog.cluster import Cluster
from ledgerlog.errors import LedgerLogError, LogSealed
from ledgerlog.log.campaign import Campaign
from ledgerlog.log.writer import LogWriter
from ledgerlog.model.attributes import Headers
from ledgerlog.model.record import Ack
from ledgerlog.testing.leaders import LOG, ContendingLeaders

__all__ = ["CampaigningLeaders"]


@attrs.frozen
class _Led:
    """The part of a writer that the tasks of a leader use: they append through the campaign."""

    _campaign: Campaign
    _writer: LogWriter

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    async def roll(self) -> None:
        await self._writer.roll()

    async def append_many(
        self,
        datas: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> list[Ack]:
        return await self._campaign.append_many(datas, keys=keys, headers=headers)


class CampaigningLeaders(ContendingLeaders):
    """The workload (``world.Workload``)."""

    async def _lead_again_and_again(self, client: Cluster) -> None:
        dice, world = self._dice, self._world
        while True:
            try:
                log = await client.open_log(LOG)
                async with log.lead(client.election(LOG)) as campaign:
                    with trio.move_on_after(dice.expovariate(1 / (4 * self._pace_s))):
                        await self._campaign(campaign)
            except LogSealed as error:
                self._require_seal(error)
                return
            except LedgerLogError as error:
                self._counts["terms that failed"] += 1
                world.event("campaign failed", type(error).__name__)
            await world.rest(dice.expovariate(4 / self._pace_s))

    async def _campaign(self, campaign: Campaign) -> None:
        latest = -1
        while True:
            writer = await campaign.writer()
            if writer.epoch > latest:
                latest = writer.epoch
                self._counts["takeovers"] += 1
                self._counts["campaigns won"] += 1
                self._world.event("leads", writer.epoch, writer.next_offset)
                self.history.on_leader(writer.epoch, writer.next_offset)
            with trio.move_on_after(self._dice.expovariate(1 / self._pace_s)):
                await self._append_from_all_sides(_Led(campaign, writer))
            self._counts["led by another"] += await campaign.leader() is not None
            await trio.sleep(self._pace_s / 4)
