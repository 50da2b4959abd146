"""A Kafka topic as input: partitions, offsets as cursors, and what goes wrong with brokers."""

import pyarrow as pa
import pytest

from megalith.errors import BadData, InvalidRequest
from megalith.tasks.ctr_options import CtrOptions
from megalith.tasks.ctr_stream import open_stream
from megalith.tasks.input.kafka import KafkaSettings, KafkaTopic, TopicAddress, read_sample
from megalith.tasks.input.messages import sample_of
from support.kafka import mock_broker

SCHEMA = pa.schema([("user", pa.int64()), ("city", pa.string()), ("click", pa.int64())])


@pytest.fixture
def broker():
    with mock_broker() as running:
        yield running


def rows(start, stop):
    return [
        {"user": n, "city": f"c{n % 7}", "click": n % 2, "more": [1]} for n in range(start, stop)
    ]


def topic(broker, name="clicks", index=0, count=1, **settings):
    told = {"batch_size": 100, "idle_s": 0.5, "linger_s": 0.3, "timeout_s": 10.0, **settings}
    address = TopicAddress.parse(broker.url(name))
    return KafkaTopic(address, SCHEMA, KafkaSettings(**told), index=index, count=count)


def users(batches):
    return [user for batch in batches for user in batch.batch.column("user").to_pylist()]


def test_two_workers_read_each_message_once(broker):
    broker.send("clicks", rows(0, 1050), 2, time_ms=1_700_000_000_123)
    batches = [list(topic(broker, index=index, count=2).batches(b"")) for index in range(2)]
    first, second = users(batches[0]), users(batches[1])
    assert first == list(range(0, 1050, 2))  # a partition keeps its order
    assert second == list(range(1, 1050, 2))
    assert [len(batch.batch) for batch in batches[0]] == [100] * 5 + [25]
    assert batches[0][0].req_time_s == 1_700_000_000
    assert batches[0][0].where == "topic clicks, offsets 0:0-99"
    assert batches[0][0].batch.schema == SCHEMA


def test_reading_goes_on_at_any_cursor(broker):
    broker.send("clicks", rows(0, 1000), 2)
    whole = list(topic(broker).batches(b""))
    for number in (0, 3, len(whole) - 1):
        rest = list(topic(broker).batches(whole[number].cursor))
        assert sorted(users(whole[: number + 1]) + users(rest)) == list(range(1000))


def test_another_number_of_workers_goes_on_at_the_offsets(broker):
    broker.send("clicks", rows(0, 1000), 2)
    read = []
    cursors = []
    for index in range(2):
        batches = topic(broker, index=index, count=2).batches(b"")
        for _ in range(2 + index):
            batch = next(batches)
            read.append(batch)
        cursors.append(batch.cursor)
        batches.close()

    one = topic(broker)
    rest = list(one.batches(one.resumed(cursors, 0, 1)))
    assert sorted(users(read) + users(rest)) == list(range(1000))

    # A worker that had read nothing: its partition is read from its start.
    begun = one.resumed([cursors[0], b""], 0, 1)
    assert len(users(one.batches(begun))) == 1000 - 200


def test_messages_that_come_later_are_read(broker):
    broker.send("clicks", rows(0, 50), 2)
    batches = topic(broker, idle_s=0.0).batches(b"")
    assert sorted(users([next(batches)])) == list(range(50))
    broker.send("clicks", rows(50, 60), 2)
    assert sorted(users([next(batches)])) == list(range(50, 60))
    batches.close()


def test_a_truncated_topic_is_an_error_with_both_offsets(broker):
    broker.send("clicks", rows(0, 10), 2)
    batches = topic(broker, batch_size=10).batches(b"")
    cursor = next(batches).cursor
    batches.close()
    broker.send("clicks", rows(10, 250_000), 2)

    with pytest.raises(BadData, match=r"topic clicks, partition 0: offset 5 is next .* begins at"):
        list(topic(broker).batches(cursor))


def test_a_truncated_topic_is_skipped_and_counted_when_told_to(broker):
    broker.send("clicks", rows(0, 10), 2)
    batches = topic(broker, batch_size=10).batches(b"")
    cursor = next(batches).cursor
    batches.close()
    broker.send("clicks", rows(10, 250_000), 2)

    reader = topic(broker, is_skipping=True, batch_size=5000)
    found = users(reader.batches(cursor))
    assert len(set(found)) == len(found)
    assert reader.num_skipped > 0
    assert len(found) + reader.num_skipped == 250_000 - 10


def test_a_topic_that_is_truncated_while_it_is_read(broker):
    """The reader stands still while the broker drops what it would read next."""
    broker.send("clicks", rows(0, 200), 2)
    few = {"queued.min.messages": 1, "queued.max.messages.kbytes": 64, "fetch.queue.backoff.ms": 2}
    reader = topic(broker, is_skipping=True, batch_size=100, idle_s=3.0, client=few)
    stopping = topic(broker, batch_size=100, idle_s=3.0, client=few).batches(b"")
    batches = reader.batches(b"")
    found = users([next(batches)])
    next(stopping)

    broker.send("clicks", rows(200, 300_000), 2)
    with pytest.raises(BadData, match=r"but the topic now begins at"):
        list(stopping)

    found += users(batches)
    assert reader.num_skipped > 0
    assert len(found) == len(set(found))
    assert len(found) + reader.num_skipped == 300_000


def test_a_cursor_beyond_the_end_is_an_error(broker):
    broker.send("clicks", rows(0, 10), 2)
    with pytest.raises(BadData, match="offset 50 is next to read, but the topic ends at 5"):
        list(topic(broker).batches(b'{"topic": "clicks", "offsets": {"0": 50}}'))


@pytest.mark.parametrize("cursor", [b"numbered batches=1", b"[]", b'{"topic": "clicks"}'])
def test_a_cursor_of_another_input_is_refused(broker, cursor):
    broker.send("clicks", rows(0, 10), 2)
    with pytest.raises(InvalidRequest, match="another kind of input"):
        list(topic(broker).batches(cursor))


def test_a_cursor_of_another_topic_is_refused(broker):
    broker.send("clicks", rows(0, 10), 2)
    with pytest.raises(InvalidRequest, match="of topic views, and the input is clicks"):
        list(topic(broker).batches(b'{"topic": "views", "offsets": {}}'))


def test_more_workers_than_partitions_is_an_error(broker):
    broker.send("clicks", rows(0, 10), 2)
    with pytest.raises(BadData, match="has 4 partitions and there are 5 workers, so worker-4"):
        list(topic(broker, index=4, count=5).batches(b""))


@pytest.mark.parametrize(
    "bad",
    [
        b"no json",
        b'{"user": "text"}',
        b'{"user": 1, "city": "\xff"}',
        b"",
        b'{"user": 1}\n{"user": 2}',
        b"[1]",
    ],
)
def test_a_message_that_cannot_be_read_is_named(broker, bad):
    sent = [*rows(0, 8), bad, *rows(8, 15)]
    broker.send("clicks", sent, 2)
    with pytest.raises(BadData, match="topic clicks, partition 0, offset 4: the message"):
        list(topic(broker).batches(b""))

    reader = topic(broker, is_skipping=True)
    assert sorted(users(reader.batches(b""))) == list(range(15))
    assert reader.num_skipped == 1


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"user": 99, "ts": 5}, "column click: the label is missing"),
        ({"user": 99, "ts": 5, "click": 3}, "column click: 1 label is outside 0..1"),
        ({"user": 99, "click": 1}, "column ts: the time is missing"),
        ({"user": 99, "click": 1, "ts": 5, "item": 5.5}, "column item: ids are made of integers"),
        ({"user": 99, "click": 1, "ts": 5, "seen": [5.5]}, "column seen: ids are made of integers"),
    ],
)
def test_a_message_that_cannot_be_trained_is_named_or_skipped_and_counted(broker, bad, complaint):
    sent = [{"user": n, "click": 1, "ts": n, "item": float(n)} for n in range(15)]
    broker.send("clicks", [*sent[:8], bad, *sent[8:]], 2)
    schema = pa.schema(
        [
            ("user", pa.int64()),
            ("click", pa.int64()),
            ("ts", pa.int64()),
            ("item", pa.float64()),
            ("seen", pa.list_(pa.float64())),
        ]
    )
    told = {
        "data": broker.url("clicks"),
        "label": "click",
        "features": "user,item",
        "lists": "seen",
        "time": "ts",
    }

    def reader(on_lost_data):
        options = CtrOptions(**told, follow="0.5", on_lost_data=on_lost_data)
        return open_stream(options, schema, 100, index=0, count=1)

    with pytest.raises(BadData, match=f"topic clicks, partition 0, offset 4, {complaint}.*skip"):
        list(reader("stop").batches(b""))
    skipping = reader("skip")
    assert sorted(users(skipping.batches(b""))) == list(range(15))
    assert skipping.left_out().skipped_messages == 1


def test_line_breaks_inside_a_message_are_no_message(broker):
    broker.send("clicks", [b'{"user":\n 1, "city":\n "x"}', b'{"user": 2}'], 2)
    assert sorted(users(topic(broker).batches(b""))) == [1, 2]


def test_a_broker_that_nobody_reaches_is_an_error_with_a_bound():
    address = TopicAddress.parse("kafka://127.0.0.1:1/clicks")
    reader = KafkaTopic(address, SCHEMA, KafkaSettings(batch_size=10, timeout_s=1.0))
    with pytest.raises(BadData, match=r"no answer from 127.0.0.1:1 for \d+ s"):
        list(reader.batches(b""))


def test_a_broker_that_goes_away_is_an_error_with_a_bound():
    with mock_broker() as running:
        running.send("clicks", rows(0, 100))
        batches = topic(running, idle_s=0.0, timeout_s=2.0).batches(b"")
        next(batches)
    with pytest.raises(BadData, match="no answer from"):
        list(batches)


def test_columns_and_types_come_from_a_sample(broker):
    broker.send("clicks", [*rows(0, 500), {"user": 5, "city": None, "empty": None}], 2)
    settings = KafkaSettings(batch_size=100, timeout_s=5.0)
    found = read_sample(TopicAddress.parse(broker.url("clicks")), settings, 1000)
    assert found.num_partitions == 4
    sample = sample_of(found.messages, "topic clicks")
    assert sample.num_rows == 501
    assert sample.schema.field("user").type == pa.int64()
    assert sample.schema.field("city").type == pa.string()
    assert sample.schema.field("empty").type == pa.string()


def test_numbers_of_a_topic_may_be_whole_or_missing_in_its_sample(broker):
    broker.send("clicks", [{"user": 1, "click": 1, "price": 5, "age": None}] * 20, 2)
    url = broker.url("clicks")
    told = {"data": url, "label": "click", "features": "user", "dense": "price,age"}
    options = CtrOptions(**told, follow="0.5", kafka_timeout_s=10.0)
    sample = sample_of(
        read_sample(TopicAddress.parse(url), KafkaSettings(1), 20).messages, "", ["age"]
    )
    assert sample.schema.field("age").type == pa.float64()

    broker.send("clicks", [{"user": 2, "click": 1.0, "price": 1.5, "age": 2.5}], 2)
    reader = open_stream(options, sample.schema, 100, index=0, count=1)
    table = pa.concat_tables(batch.batch for batch in reader.batches(b""))
    assert sorted(table.column("price").to_pylist()) == [1.5] + [5] * 20


def test_a_topic_that_is_not_there_is_named(broker):
    broker.send("clicks", [b"x"], 2)
    settings = KafkaSettings(batch_size=100, timeout_s=1.0)
    with pytest.raises(BadData, match="there is no topic other at"):
        read_sample(TopicAddress.parse(broker.url("other")), settings, 10)
