"""A Kafka broker in this process: librdkafka's mock, which other processes can reach too.

A topic has 4 partitions, made when it is first asked for. The mock keeps about 5 MB or 100,000
messages of a partition and drops the oldest.
"""

import json
from contextlib import contextmanager

from confluent_kafka import Producer

NUM_PARTITIONS = 4


class MockBroker:
    def __init__(self):
        self._producer = Producer(
            {
                "bootstrap.servers": "-",
                "test.mock.num.brokers": 1,
                "log_level": 0,
                "linger.ms": 5,
            }
        )
        brokers = self._producer.list_topics(timeout=10).brokers.values()
        self.address = ",".join(f"{each.host}:{each.port}" for each in brokers)

    def url(self, topic):
        return f"kafka://{self.address}/{topic}"

    def send(self, topic, rows, num_partitions=NUM_PARTITIONS, time_ms=0):
        """Objects as JSON and bytes as they are, dealt to the first partitions in turn."""
        for number, row in enumerate(rows):
            value = row if isinstance(row, bytes) else json.dumps(row).encode()
            self._produce(topic, value, number % num_partitions, time_ms)
        self._producer.flush(30)

    def _produce(self, topic, value, partition, time_ms):
        while True:
            try:
                self._producer.produce(topic, value, partition=partition, timestamp=time_ms)
                return
            except BufferError:
                self._producer.poll(0.1)

    def close(self):
        self._producer.flush(5)
        del self._producer


@contextmanager
def mock_broker():
    broker = MockBroker()
    try:
        yield broker
    finally:
        broker.close()
