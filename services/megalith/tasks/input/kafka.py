"""A Kafka topic as input: endless, and its cursor is an offset for each partition.

Of n workers, worker i reads the partitions i, i + n, i + 2n and so on. No consumer group is used:
the offsets are in the cursor, which is saved with the model, so both always fit together.
"""

import functools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from megalith.errors import BadData, InvalidRequest, InvalidSetting
from megalith.errors.extras import how_to_install
from megalith.runtime.counting import counted
from megalith.tasks.input.messages import Message, readable, table_of
from megalith.wire.reports import InputCounts
from megalith.worker.input import Input, InputBatch

logger = logging.getLogger(__name__)

_URL = re.compile(r"kafka://([^/]+)/([A-Za-z0-9._-]+)")
_POLL_S = 0.2  # how soon a reader that waits for messages notices that it is closed
_PROBE_S = 5.0  # how often a silent broker is asked whether it is there


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """`kafka://host:port,host:port/topic`."""

    servers: str
    topic: str

    @classmethod
    def parse(cls, url: str) -> Self:
        match = _URL.fullmatch(url)
        if match is None:
            raise InvalidSetting(f"--data={url}: expected kafka://host:port/topic")

        return cls(*match.groups())


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How a topic is read.

    `timeout_s` bounds how long brokers may be out of reach. `is_skipping` passes over messages that
    cannot be read, and offsets that the topic no longer has, and counts both; otherwise they are
    errors. A batch is given after `linger_s` even if it is not full. The input ends when no message
    has come for `idle_s`; 0 = it never ends.
    """

    batch_size: int
    timeout_s: float = 60.0
    is_skipping: bool = False
    linger_s: float = 1.0
    idle_s: float = 0.0
    # Further settings of librdkafka, such as security.protocol.
    client: dict[str, Any] = field(default_factory=dict)


def is_topic(data: str) -> bool:
    return data.startswith("kafka://")


class KafkaTopic(Input[pa.Table]):
    """The partitions of one worker, as tables with the columns of `schema`.

    `check` raises BadData for a table with values that nobody can train. The message that has them
    is as bad as one that cannot be read.

    For one thread, but `stop` may be called by another.
    """

    def __init__(
        self,
        address: TopicAddress,
        schema: pa.Schema,
        settings: KafkaSettings,
        *,
        index: int = 0,
        count: int = 1,
        check: Callable[[pa.Table, str], object] = lambda table, where: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._schema = schema
        self._settings = settings
        self._index = index
        self._count = count
        self._check = check
        self._clock = clock
        self._stopped = threading.Event()
        self._offsets: dict[int, int] = {}  # by partition: the next message to read
        self.num_skipped = 0

    def batches(self, cursor: bytes) -> Iterator[InputBatch[pa.Table]]:
        """The messages from the cursor on; without one from the oldest that the topic has."""
        consumer = _Consumer(self._address, self._settings)
        try:
            self._begin(consumer, cursor)
            while True:
                messages = self._drawn(consumer)
                if not messages:
                    return

                batch = self._batch(messages)
                if batch.batch.num_rows:
                    yield batch
        finally:
            consumer.close()

    def resumed(self, saved: Sequence[bytes], index: int, count: int) -> bytes:
        """The offsets of all partitions, whoever has read them: so their number may change."""
        offsets: dict[int, int] = {}
        for cursor in saved:
            parsed = self._parsed(cursor)
            for partition, offset in parsed.items():
                known = offsets.get(partition, offset)
                offsets[partition] = min(offset, known)

        return self._encoded(offsets) if offsets else b""

    def left_out(self) -> InputCounts:
        return InputCounts(skipped_messages=self.num_skipped)

    def stop(self) -> None:
        self._stopped.set()

    def _begin(self, consumer: "_Consumer", cursor: bytes) -> None:
        partitions = consumer.partitions()
        mine = []
        for partition in partitions:
            if partition % self._count == self._index:
                mine.append(partition)

        if not mine:
            number = counted(len(partitions), "partition")
            raise BadData(
                f"topic {self._address.topic} has {number} and there are "
                f"{self._count} workers, so worker-{self._index} has nothing to read; "
                f"use --num-workers {len(partitions)} or fewer"
            )

        read = self._parsed(cursor)
        self._offsets = {}
        for partition in mine:
            bounds = consumer.bounds(partition)
            offset = read.get(partition, bounds[0])
            self._offsets[partition] = self._available(partition, offset, bounds)

        consumer.assign(self._offsets)
        logger.info("reading topic=%s offsets=%s", self._address.topic, self._offsets)

    def _drawn(self, consumer: "_Consumer") -> list[Message]:
        """The messages of the next batch; none if the input has ended."""
        drawn: list[Message] = []
        settings = self._settings
        began_at = self._clock()
        heard_at = began_at
        while len(drawn) < settings.batch_size and not self._stopped.is_set():
            messages, lost = consumer.read(settings.batch_size - len(drawn), _POLL_S)
            for message in messages:
                self._offsets[message.partition] = message.offset + 1
            if lost:
                self._pass_over(consumer, lost)

            now = self._clock()
            if messages:
                if not drawn:
                    began_at = now
                drawn += messages
                heard_at = now

            # Also while messages come: a few at a time would fill a batch in minutes.
            if drawn and now - began_at >= settings.linger_s:
                break
            if messages:
                continue

            if not drawn and settings.idle_s and now - heard_at >= settings.idle_s:
                break

            consumer.check_reachable()

        return drawn

    def _pass_over(self, consumer: "_Consumer", partitions: Sequence[int]) -> None:
        """Go on where these partitions now begin."""
        for partition in partitions:
            bounds = consumer.bounds(partition)
            offset = self._offsets[partition]
            self._offsets[partition] = self._available(partition, offset, bounds)

        # A partition that is out of range cannot be sought in, so all are assigned again.
        consumer.assign(self._offsets)

    def _available(self, partition: int, offset: int, bounds: tuple[int, int]) -> int:
        """The offset, or the first one that the topic still has. BadData beyond its end."""
        low, high = bounds
        if offset > high:
            raise BadData(
                f"topic {self._address.topic}, partition {partition}: offset {offset} is next to "
                f"read, but the topic ends at {high}; is it another topic of that name?"
            )
        if offset >= low:
            return offset

        gone = counted(low - offset, "message is", "messages are")
        lost = (
            f"topic {self._address.topic}, partition {partition}: offset {offset} is next to read, "
            f"but the topic now begins at {low}; {gone} gone"
        )
        if not self._settings.is_skipping:
            raise BadData(f"{lost}; --on-lost-data skip goes on without them")

        logger.warning("skipped: %s", lost)
        self.num_skipped += low - offset
        return low

    def _batch(self, messages: list[Message]) -> InputBatch[pa.Table]:
        where = _where(self._address.topic, messages)
        table = self._table(messages, where)
        cursor = self._encoded(self._offsets)

        newest_ms = max(message.time_ms for message in messages)
        return InputBatch(table, cursor, newest_ms // 1000, where)

    def _table(self, messages: list[Message], where: str) -> pa.Table:
        try:
            return self._checked(messages)
        except (pa.ArrowException, BadData) as error:
            good, bad = readable(messages, self._checked)

            unreadable = self._fault_of(bad[0]) if bad else f"{where}: {error}"
            if not bad or not self._settings.is_skipping:
                raise BadData(f"{unreadable}; --on-lost-data skip goes on without it") from error

        logger.warning("skipped messages=%d in %s; the first: %s", len(bad), where, unreadable)
        self.num_skipped += len(bad)
        return table_of(good, self._schema) if good else self._schema.empty_table()

    def _checked(self, messages: Sequence[Message]) -> pa.Table:
        table = table_of(messages, self._schema)
        self._check(table, _where(self._address.topic, messages))
        return table

    def _fault_of(self, bad: Message) -> str:
        """What is wrong with this message, and where it is."""
        where = f"topic {self._address.topic}, partition {bad.partition}, offset {bad.offset}"
        try:
            table = table_of([bad], self._schema)
            self._check(table, where)
        except pa.ArrowException as error:
            return f"{where}: the message is no JSON object with the columns of the others: {error}"
        except BadData as error:
            return str(error)

        return where

    def _encoded(self, offsets: dict[int, int]) -> bytes:
        content = {"topic": self._address.topic, "offsets": offsets}
        return json.dumps(content).encode()

    def _parsed(self, cursor: bytes) -> dict[int, int]:
        if not cursor:
            return {}

        try:
            content = json.loads(cursor)
            topic = content["topic"]
            offsets = {int(key): int(value) for key, value in content["offsets"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequest(
                f"the input cursor {cursor[:60]!r} is of another kind of input; "
                "to read from the start, set --input-cursors false"
            ) from None

        if topic != self._address.topic:
            raise InvalidRequest(
                f"the input cursor is of topic {topic}, and the input is {self._address.topic}; "
                "to read from the start, set --input-cursors false"
            )

        return offsets


@dataclass(frozen=True, slots=True)
class TopicSample:
    messages: list[Message]
    num_partitions: int


def read_sample(address: TopicAddress, settings: KafkaSettings, count: int) -> TopicSample:
    """The oldest messages of the topic, as many as come within a second of the first."""
    consumer = _Consumer(address, settings)
    try:
        offsets = {each: consumer.bounds(each)[0] for each in consumer.partitions()}
        consumer.assign(offsets)
        found: list[Message] = []
        until = time.monotonic() + settings.timeout_s
        while len(found) < count and time.monotonic() < until:
            messages, _ = consumer.read(count - len(found), _POLL_S)
            if messages and not found:
                until = min(until, time.monotonic() + 1.0)

            found += messages

        if not found:
            raise BadData(
                f"topic {address.topic} has no message, and none came within "
                f"{settings.timeout_s:g} s, so its columns are not known"
            )

        return TopicSample(found, len(offsets))
    finally:
        consumer.close()


class _Consumer:
    """librdkafka's consumer, with errors of ours. For one thread."""

    def __init__(self, address: TopicAddress, settings: KafkaSettings) -> None:
        self._kafka = _library()
        self._address = address
        self._timeout_s = settings.timeout_s
        self._heard_at = time.monotonic()
        self._probed_at = time.monotonic()
        self._first_partition = 0
        self._consumer = self._kafka.Consumer(
            {
                "bootstrap.servers": address.servers,
                "group.id": "megalith",  # it must have one, but joins no group
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,  # what goes wrong is said by our errors
                **settings.client,
            }
        )

    def partitions(self) -> list[int]:
        topic = self._address.topic
        listed = functools.partial(self._consumer.list_topics, topic, timeout=self._timeout_s)
        metadata = self._asked(listed).topics.get(topic)

        is_known = metadata is not None and metadata.error is None
        if not is_known or not metadata.partitions:
            raise BadData(f"there is no topic {topic} at {self._address.servers}")

        return sorted(metadata.partitions)

    def bounds(self, partition: int) -> tuple[int, int]:
        """(the oldest offset that there is, the one after the newest)."""
        place = self._kafka.TopicPartition(self._address.topic, partition)
        low, high = self._asked(
            lambda: self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
        )
        return int(low), int(high)

    def assign(self, offsets: dict[int, int]) -> None:
        topic = self._address.topic
        self._first_partition = min(offsets)
        places = [
            self._kafka.TopicPartition(topic, partition, offset)
            for partition, offset in offsets.items()
        ]
        self._consumer.assign(places)

    def read(self, limit: int, timeout_s: float) -> tuple[list[Message], list[int]]:
        """(messages, partitions whose next offset the topic no longer has)."""
        messages = []
        lost = []
        for message in self._consumer.consume(limit, timeout=timeout_s):
            error = message.error()
            if error is None:
                _, time_ms = message.timestamp()
                read = Message(
                    message.value(),
                    message.partition(),
                    message.offset(),
                    max(time_ms, 0),  # -1 is that of a message without a time
                )
                messages.append(read)
            elif error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
                lost.append(message.partition())
            elif error.fatal():
                raise BadData(f"topic {self._address.topic}: {error.str()}")
            else:
                logger.warning("topic=%s: %s", self._address.topic, error.str())

        if messages:
            self._heard_at = time.monotonic()

        return messages, lost

    def check_reachable(self) -> None:
        """Ask a silent broker whether it is there; BadData if it was not for too long."""
        now = time.monotonic()
        unasked_s = now - max(self._heard_at, self._probed_at)
        every_s = min(_PROBE_S, self._timeout_s / 2)

        if unasked_s < every_s:
            return

        self._probed_at = now
        place = self._kafka.TopicPartition(self._address.topic, self._first_partition)

        try:
            self._consumer.get_watermark_offsets(place, timeout=2 * _POLL_S)
            self._heard_at = time.monotonic()
        except self._kafka.KafkaException as error:
            silent_s = time.monotonic() - self._heard_at
            if silent_s >= self._timeout_s:
                raise self._unreachable(silent_s) from error

    def close(self) -> None:
        self._consumer.close()

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """An answer; one that does not come in time is an error."""
        began_at = time.monotonic()
        try:
            return ask()
        except self._kafka.KafkaException as error:
            raise self._unreachable(time.monotonic() - began_at, error) from error

    def _unreachable(self, silent_s: float, error: Exception | None = None) -> BadData:
        detail = ""
        if error is not None:
            reason = error.args[0].str()
            detail = f": {reason}"

        return BadData(
            f"topic {self._address.topic}: no answer from {self._address.servers} "
            f"for {silent_s:.0f} s{detail}; is the broker running, and is the address right?"
        )


def _library() -> Any:
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        raise InvalidSetting(f"--data=kafka://...: {how_to_install('kafka', error)}") from error

    return confluent_kafka


def _where(topic: str, messages: Sequence[Message]) -> str:
    """For messages: the first and last offset of each partition of a batch."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for message in messages:
        first.setdefault(message.partition, message.offset)
        last[message.partition] = message.offset

    parts = []
    for partition in sorted(first):
        parts.append(f"{partition}:{first[partition]}-{last[partition]}")

    offsets = " ".join(parts)
    return f"topic {topic}, offsets {offsets}"
