"""What the broker inside the tests cannot do: a topic that is made anew, or in which time passes."""

import pyarrow as pa
import pytest

from megalith.errors import BadData
from megalith.tasks.input import kafka
from megalith.tasks.input.kafka import KafkaSettings, KafkaTopic, TopicAddress
from megalith.tasks.input.messages import Message

SCHEMA = pa.schema([("n", pa.int64())])


class ConsumerOfATopicMadeAnew:
    """500 messages, and then a topic of the same name with ten."""

    def __init__(self, address, settings):
        self.high = 500
        self.num_reads = 0

    def partitions(self):
        return [0]

    def bounds(self, partition):
        return 0, self.high

    def assign(self, offsets):
        self.next = offsets[0]

    def read(self, limit, timeout_s):
        self.num_reads += 1
        assert self.num_reads < 20, "it asks for ever"
        if self.next >= 500:
            self.high = 10
            return [], [0]  # out of range

        start = self.next
        self.next = min(500, start + limit)
        messages = [Message(b'{"n": %d}' % n, 0, n) for n in range(start, self.next)]
        return messages, []

    def check_reachable(self):
        """It is."""

    def close(self):
        """Nothing is open."""


@pytest.mark.parametrize("is_skipping", [False, True])
def test_a_topic_that_is_made_anew_while_it_is_read_is_an_error(monkeypatch, is_skipping):
    monkeypatch.setattr(kafka, "_Consumer", ConsumerOfATopicMadeAnew)
    settings = KafkaSettings(100, is_skipping=is_skipping)
    topic = KafkaTopic(TopicAddress("broker:9092", "clicks"), SCHEMA, settings)
    batches = topic.batches(b"")
    for _ in range(5):
        next(batches)
    with pytest.raises(BadData, match="offset 500 is next to read, but the topic ends at 10"):
        next(batches)


class ConsumerOfATrickle:
    """Ten messages a second, for ever."""

    def __init__(self, address, settings):
        self.now_s = 0.0
        self.next = 0

    def partitions(self):
        return [0]

    def bounds(self, partition):
        return 0, 0

    def assign(self, offsets):
        """It is at the first one."""

    def read(self, limit, timeout_s):
        self.now_s += timeout_s
        first = self.next
        self.next = round(self.now_s * 10)
        return [Message(b'{"n": %d}' % n, 0, n) for n in range(first, self.next)], []

    def check_reachable(self):
        """It is."""

    def close(self):
        """Nothing is open."""


def test_a_batch_does_not_wait_to_be_full_while_messages_trickle_in(monkeypatch):
    consumer = ConsumerOfATrickle(None, None)
    monkeypatch.setattr(kafka, "_Consumer", lambda address, settings: consumer)
    topic = KafkaTopic(
        TopicAddress("broker:9092", "clicks"),
        SCHEMA,
        KafkaSettings(100_000, linger_s=1.0),
        clock=lambda: consumer.now_s,
    )
    batches = topic.batches(b"")
    read = []
    for number in range(1, 6):
        read += next(batches).batch.column("n").to_pylist()
        assert consumer.now_s < 1.5 * number
    assert read == list(range(consumer.next))
