"""The options of the source: their meaning, and the errors for wrong ones."""

from __future__ import annotations

import pytest

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import AUDIT_SETTLE_S
from ledgerlog.spark.options import (
    PARTITION_BYTES,
    PARTITION_REPLICAS,
    AuditOptions,
    ReadOptions,
    WriteOptions,
    parse_audit_options,
    parse_read_options,
    parse_write_options,
)

URI = "zk://localhost:2181/x"


def batch(**options: str) -> ReadOptions:
    return parse_read_options({"uri": URI, "path": "orders", **options}, is_stream=False)


def stream(**options: str) -> ReadOptions:
    return parse_read_options({"uri": URI, "path": "orders", **options}, is_stream=True)


def test_a_batch_reads_all_there_is_and_a_stream_what_comes() -> None:
    assert (batch().starting, batch().ending) == ("earliest", "latest")
    assert (stream().starting, stream().ending) == ("latest", "latest")
    assert batch().max_bytes_per_partition == PARTITION_BYTES
    assert batch().fail_on_data_loss


def test_names_are_compared_without_case() -> None:
    options = parse_read_options(
        {"URI": URI, "LOG": "orders", "minpartitions": "7", "failondataloss": "FALSE"}, is_stream=False
    )
    assert (options.min_partitions, options.fail_on_data_loss) == (7, False)


def test_bounds_are_words_offsets_or_json_by_log_with_kafkas_numbers() -> None:
    two = {"uri": URI, "logs": "a, b"}
    options = parse_read_options(
        {**two, "startingoffsets": '{"a": 5, "b": -2}', "endingoffsets": '{"a": "latest"}'}, is_stream=False
    )
    assert options.logs == ("a", "b")
    assert [options.start_of(log) for log in "ab"] == [5, "earliest"]
    assert [options.end_of(log) for log in "ab"] == ["latest", "latest"]
    assert batch(startingoffsets="17").start_of("orders") == 17


def test_moments_are_milliseconds_or_iso_in_utc() -> None:
    assert batch(startingtimestamp="1700000000000").starting_ms == 1_700_000_000_000
    assert batch(endingtimestamp="1970-01-01T00:00:02").ending_ms == 2000
    assert batch(endingtimestamp="1970-01-01T01:00:02+01:00").ending_ms == 2000


def test_a_pattern_selects_whole_names() -> None:
    options = parse_read_options({"uri": URI, "logpattern": "ord.*"}, is_stream=True)
    assert options.select(["orders", "preorders", "ord/1"]) == ["orders", "ord/1"]
    assert batch().select([]) == ["orders"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffset": "5"}, "did you mean endingOffsets"),
        ({"colour": "red"}, "there is no option 'colour'"),
        ({"paths": '["orders","users"]'}, "name several by the option logs"),
        ({"maxOffsetsPerTrigger": "5"}, "for a stream"),
        ({"cursorName": "c"}, "for a stream"),
        ({"minOffsetsPerTrigger": "5"}, "for a stream"),
        ({"log": "x"}, "path and log are given"),
        ({"startingOffsets": "latest"}, "would be empty"),
        ({"endingOffsets": "earliest"}, "would be empty"),
        ({"startingOffsets": "soon"}, "startingOffsets is"),
        ({"startingOffsets": '{"orders": -3}'}, "-3 is not an offset"),
        ({"startingOffsets": '{"orders": true}'}, "True is not an offset"),
        ({"startingOffsets": '{"other": 3}'}, "other"),
        ({"startingOffsets": "3", "startingTimestamp": "4"}, "give only one"),
        ({"endingOffsets": "3", "endingTimestamp": "4"}, "give only one"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"minPartitions": "0"}, "positive"),
        ({"minPartitions": "\u00b2"}, "positive"),
        ({"minPartitions": "1" * 5000}, "positive"),
        ({"startingOffsets": "\u00b2"}, "startingOffsets is"),
        ({"startingOffsets": "9" * 19}, "startingOffsets is"),
        ({"startingOffsets": "[" * 100_000}, "startingOffsets is"),
        ({"startingOffsets": '{"orders": 9223372036854775808}'}, "is not an offset"),
        ({"endingTimestamp": "\u00b2"}, "milliseconds since 1970"),
        ({"maxBytesPerPartition": "64m"}, "positive"),
        ({"uri": "memory:"}, "inside one process"),
        ({"uri": "file:x"}, "inside one process"),
        ({"uri": "nowhere"}, "nowhere"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words.replace("(", "[(]")):
        parse_read_options({"uri": URI, "path": "orders", **options}, is_stream=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "x"}, "option uri is missing"),
        ({"uri": URI}, "none is given"),
        ({"uri": URI, "logPattern": "("}, "not a regular expression"),
        ({"uri": URI, "path": "x", "endingOffsets": "5"}, "for a batch"),
        ({"uri": URI, "path": "x", "cursorName": "//"}, "not the name of a cursor"),
        ({"uri": URI, "path": "a b"}, "a b"),
        ({"uri": URI, "path": "x", "maxTriggerDelay": "5m"}, "give that, too"),
        ({"uri": URI, "path": "x", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "5"}, "such as 30s"),
        ({"uri": URI, "path": "x", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "0s"}, "such as 30s"),
        ({"uri": URI, "path": "x", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is more than"),
    ],
)
def test_a_stream_says_so_as_well(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_read_options(options, is_stream=True)


def writing(*, is_stream: bool = False, **options: str) -> WriteOptions:
    return parse_write_options({"uri": URI, "path": "orders", **options}, is_stream=is_stream)


def test_a_write_says_where_and_as_whom() -> None:
    job = writing(producerid="nightly", batchseq="20260301")
    assert (job.log, job.producer_id, job.batch_seq) == ("orders", "nightly", 20260301)
    query = writing(is_stream=True, checkpointLocation="/x", queryname="copy", failOnDataLoss="false")
    assert (query.producer_id, query.fail_on_data_loss) == (None, False)


@pytest.mark.parametrize(
    ("is_stream", "options", "words"),
    [
        (False, {"producerId": "x"}, "go together"),
        (False, {"batchSeq": "1"}, "go together"),
        (False, {"producerId": "x", "batchSeq": "-1"}, "a number from 0 on"),
        (False, {"producerId": "x", "batchSeq": "\u00b2"}, "a number from 0 on"),
        (False, {"producerId": "x", "batchSeq": "9223372036854775808"}, "a number from 0 on"),
        (False, {"producerId": "a b", "batchSeq": "1"}, "not the name of a producer"),
        (False, {"checkpointLocation": "/x"}, "for a stream"),
        (True, {"batchSeq": "1"}, "for a batch"),
        (True, {"startingOffsets": "1"}, "there is no option"),
        (True, {"log": "x"}, "not by both"),
    ],
)
def test_what_is_wrong_with_a_write_is_said(is_stream: bool, options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        writing(is_stream=is_stream, **options)


def test_a_table_of_sql_that_got_no_options_is_told_why() -> None:
    for parse in (
        lambda: parse_read_options({}, is_stream=False),
        lambda: parse_read_options({}, is_stream=True),
        lambda: parse_write_options({}, is_stream=False),
        lambda: parse_audit_options({}),
    ):
        with pytest.raises(InvalidArgument, match="does not pass the OPTIONS of CREATE TABLE"):
            parse()


# --- audits ---------------------------------------------------------------------------------------


def audit(**options: str) -> AuditOptions:
    return parse_audit_options({"uri": URI, **options})


def test_an_audit_goes_over_everything_by_the_index_unless_told_otherwise() -> None:
    given = audit()
    assert (given.logs, given.ledgers, given.scrub, given.summary) == ((), (), False, False)
    assert (given.min_partitions, given.replicas_per_partition) == (1, PARTITION_REPLICAS)
    assert given.settle_s == AUDIT_SETTLE_S
    assert audit(mode="scrub", summary="true").scrub
    assert audit(path="orders").logs == audit(log="orders").logs == ("orders",)
    assert audit(LOGS="b, a,b").logs == ("a", "b")
    assert audit(ledgers="7, 3,7").ledgers == (3, 7)
    assert audit(settleseconds="0.5", replicasperpartition="9").settle_s == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modus": "scrub"}, "did you mean mode"),
        ({"startingOffsets": "earliest"}, "there is no option"),
        ({"mode": "all"}, "mode is"),
        ({"log": "a", "ledgers": "3"}, "at most one of"),
        ({"ledgers": "3,x"}, "not the number of a ledger"),
        ({"ledgers": ""}, "not the number of a ledger"),
        ({"ledgers": "-1"}, "not the number of a ledger"),
        ({"logs": "a,,b"}, "log name"),
        ({"summary": "yes"}, "true or false"),
        ({"minPartitions": "0"}, "positive number"),
        ({"settleSeconds": "nan"}, "from 0 to"),
        ({"settleSeconds": "soon"}, "from 0 to"),
        ({"settleSeconds": "1e9"}, "from 0 to"),
        ({"uri": "memory:"}, "inside one process"),
    ],
)
def test_what_is_wrong_with_an_audit_is_said(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        audit(**options)
