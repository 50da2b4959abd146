"""What the broker inside the tests cannot do: a topic that is made anew while it is read."""

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
