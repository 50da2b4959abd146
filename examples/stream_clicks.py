"""Clicks on a Kafka topic, made up: user, item, price, and whether it was clicked.

    python examples/stream_clicks.py [--clicks N] [--per-second N] [--broker HOST:PORT] [--topic T]

The first line that it prints is the topic for `megalith train ctr --data`. Without --broker it is a
broker itself, which lives in its memory until Ctrl-C, also when all clicks are sent.

That broker keeps 100,000 messages or 5 MB of each of the four partitions, and drops the oldest. So
clicks come at a pace that a reader keeps up with, and not all at once.
"""

import argparse
import itertools
import json
import sys
import time
from typing import Any

import numpy as np
from confluent_kafka import Producer

NUM_USERS = 2_000
NUM_ITEMS = 500
TURN_S = 0.1


class Clicks:
    """Cheap items are clicked more often, and some users click more than others."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self._price = self._rng.uniform(1.0, 100.0, NUM_ITEMS).round(2)
        self._eagerness = self._rng.normal(0.0, 1.0, NUM_USERS)

    def draw(self, count: int) -> list[dict[str, Any]]:
        users = self._rng.integers(NUM_USERS, size=count)
        items = self._rng.integers(NUM_ITEMS, size=count)
        prices = self._price[items]
        logits = self._eagerness[users] + (50.0 - prices) / 15.0
        clicked = self._rng.random(count) < 1.0 / (1.0 + np.exp(-logits))

        return [
            {"user": f"u{user}", "item": int(item), "price": float(price), "click": int(click)}
            for user, item, price, click in zip(users, items, prices, clicked, strict=True)
        ]


def connected(broker: str | None) -> tuple[Producer, str]:
    """A producer, and the address of its broker."""
    if broker is not None:
        return Producer({"bootstrap.servers": broker}), broker

    producer = Producer({"bootstrap.servers": "-", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = producer.list_topics(timeout=10).brokers.values()
    return producer, ",".join(f"{each.host}:{each.port}" for each in brokers)


def send(producer: Producer, topic: str, clicks: list[dict[str, Any]]) -> None:
    for click in clicks:
        value = json.dumps(click).encode()
        while True:
            try:
                # Clicks of a user stay in one partition, and so in their order.
                producer.produce(topic, value, key=click["user"])
                break
            except BufferError:  # the broker is slower than this program
                producer.poll(0.1)

    producer.poll(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Clicks on a Kafka topic, made up.")
    parser.add_argument("--clicks", type=int, default=0, help="how many; 0 = until Ctrl-C")
    parser.add_argument("--per-second", type=int, default=3_000)
    parser.add_argument("--broker", help="host:port; without it this program is one")
    parser.add_argument("--topic", default="clicks")
    given = parser.parse_args()

    producer, address = connected(given.broker)
    clicks = Clicks()
    sent = 0
    for turn in itertools.count():
        count = max(1, int(given.per_second * TURN_S))
        if given.clicks:
            count = min(count, given.clicks - sent)
        if not count:
            break

        send(producer, given.topic, clicks.draw(count))
        sent += count
        if turn == 0:
            producer.flush(30)  # the topic exists before anybody is told of it
            print(f"kafka://{address}/{given.topic}", flush=True)

        time.sleep(TURN_S)

    producer.flush(30)
    while given.broker is None:
        time.sleep(1.0)  # readers are not done yet


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
