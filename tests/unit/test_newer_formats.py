"""A record or file of a newer format is refused by name. It is not damage, so nothing may repair it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import cbor2
import pytest
import trio

from bookie.core.block import PAGE_BYTES
from bookie.core.entry_log import LogHeader
from bookie.core.loss_marks import LossMarks
from bookie.core.segment import SegmentHeader
from bookie.server.identity import read_cookie
from bookie.storage.engine.directory import open_directory
from ledgerlog.errors import IncompatibleVersion, MetadataCorrupt, StorageCorrupt, WireError
from ledgerlog.model.bookie import Cookie
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.snapshots import SnapshotHead, decode_snapshot_untrusted, encode_snapshot
from tests.unit.test_codecs_agree import CODECS, Codec

GOLDEN = Path(__file__).parents[1] / "golden" / "v0.1" / "codecs.json"
NEWER = 77


def examples() -> list[Any]:
    """Return, for each codec of a record with a format, the codec, a stand-in for a value, and the record as
    a map.
    """

    found = []
    for name, rows in json.loads(GOLDEN.read_text()).items():
        for said, data in rows[:1]:
            raw = bytes.fromhex(data)
            try:
                fields = cbor2.loads(raw)
            except (ValueError, cbor2.CBORDecodeError):
                continue
            if isinstance(fields, dict) and "v" in fields:
                found.append(pytest.param(CODECS[name], said, fields, id=name))
    return found


class Said(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


def stand_in(said: Any) -> Any:
    return Said(said) if isinstance(said, dict) else said


def test_every_kind_of_record_is_asked() -> None:
    assert len(examples()) >= 16


@pytest.mark.parametrize(("codec", "said", "fields"), examples())
def test_a_record_of_a_newer_format_is_refused_by_name(
    codec: Codec, said: Any, fields: dict[str, Any]
) -> None:
    data = cbor2.dumps({**fields, "v": NEWER}, canonical=True)
    with pytest.raises(IncompatibleVersion) as refused:
        codec.decode(data, stand_in(said))
    assert refused.value.theirs == (NEWER, NEWER)
    assert refused.value.ours[1] < NEWER
    assert f"has format {NEWER}; this version of ledgerlog reads" in str(refused.value)
    assert refused.value.what in str(refused.value)
    assert not isinstance(refused.value, StorageCorrupt)


@pytest.mark.parametrize(("codec", "said", "fields"), examples())
def test_a_record_of_a_newer_format_without_any_field_of_ours_is_refused_and_not_damaged(
    codec: Codec, said: Any, fields: dict[str, Any]
) -> None:
    with pytest.raises(IncompatibleVersion):
        codec.decode(cbor2.dumps({"v": NEWER}), stand_in(said))


@pytest.mark.parametrize(("codec", "said", "fields"), examples())
def test_a_format_that_never_was_is_damage(codec: Codec, said: Any, fields: dict[str, Any]) -> None:
    data = cbor2.dumps({**fields, "v": 0}, canonical=True)
    with pytest.raises((MetadataCorrupt, WireError)) as refused:
        codec.decode(data, stand_in(said))
    assert not isinstance(refused.value, IncompatibleVersion)


def page_of_format(page: bytes, version: int) -> bytes:
    body = page[:8] + struct.pack("<I", version) + page[12:-4]
    return body + struct.pack("<I", checksum(body))


def test_a_file_of_a_newer_format_is_refused_by_name_and_is_not_damaged() -> None:
    segment = SegmentHeader(1, 4 * PAGE_BYTES, bytes(16), "i")
    log = LogHeader(1, 4 * PAGE_BYTES, bytes(16), "i", 0)
    for header in (segment, log):
        page = page_of_format(header.encode(), 2)
        with pytest.raises(
            IncompatibleVersion, match=r"a/file has format 2; this version .* reads 1"
        ) as newer:
            type(header).decode(page, path="a/file", number=1, instance="i")
        assert not isinstance(newer.value, StorageCorrupt), "nobody sets it aside, or heals it"
        with pytest.raises(StorageCorrupt):
            type(header).decode(page_of_format(header.encode(), 0), path="a/file", number=1, instance="i")
    with pytest.raises(IncompatibleVersion, match="a/marks has format 3"):
        LossMarks.decode_untrusted(page_of_format(LossMarks().encode(), 3), "a/marks")


def test_a_snapshot_of_a_newer_format_is_refused_by_name() -> None:
    head = SnapshotHead(log="l", incarnation=1, next_offset=1, timestamp_ms=1, requests=0)
    stream = b"".join(encode_snapshot(head, [], [b"chunk"]))
    newer = stream.replace(b"LLSNAP1\n", b"LLSNAP2\n")[:-4]
    with pytest.raises(IncompatibleVersion, match="snapshot has format 2"):
        decode_snapshot_untrusted(newer + struct.pack("<I", checksum(newer)))
    with pytest.raises(WireError):
        decode_snapshot_untrusted(newer + stream[-4:])
    with pytest.raises(WireError):
        decode_snapshot_untrusted(stream.replace(b"LLSNAP1\n", b"LLSNAP0\n"))


@pytest.mark.parametrize("where", ["file", "record"])
async def test_a_cookie_of_a_newer_format_is_refused_by_name_and_stays(where: str, tmp_path: Path) -> None:
    path = tmp_path / "b1"
    async with open_directory(str(path)) as directory:
        await directory.format(Cookie("b1", "i", "c"))
    file = trio.Path(path / "cookie")
    data = await file.read_bytes()
    if where == "file":
        data = data.replace(b"LLCOOKI1", b"LLCOOKI2")[:-4]
    else:
        record = cbor2.dumps({**cbor2.loads(data[12:-4]), "v": 2}, canonical=True)
        data = data[:8] + struct.pack("<I", len(record)) + record
    data += struct.pack("<I", checksum(data))
    await file.write_bytes(data)
    async with open_directory(str(path)) as directory:
        with pytest.raises(IncompatibleVersion, match=f"{path}/cookie has format 2"):
            await read_cookie(directory)
    assert await file.read_bytes() == data


def test_the_exception_says_both_ranges() -> None:
    error = IncompatibleVersion("bookie b1", (3, 4), (1, 2), is_protocol=True)
    assert str(error) == "bookie b1 speaks protocol 3 to 4; this version of ledgerlog speaks 1 to 2"
