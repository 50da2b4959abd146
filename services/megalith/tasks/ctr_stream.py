"""Which reader streams the data of `megalith train ctr`, and what is known of it before."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from megalith.errors import BadData
from megalith.runtime.counting import counted
from megalith.tasks.ctr_options import CtrOptions, names
from megalith.tasks.input.examples import check_values
from megalith.tasks.input.file_stream import FileStream, StreamSettings
from megalith.tasks.input.kafka import KafkaSettings, KafkaTopic, TopicAddress, read_sample
from megalith.tasks.input.messages import sample_of
from megalith.tasks.input.schemas import with_wide_numbers
from megalith.worker.input import Input

_SAMPLED = 1000  # messages of a topic from which its columns are known
_NO_WAIT_S = 2.0  # a topic that is not followed ends when no message comes for so long


def open_stream(
    options: CtrOptions, schema: pa.Schema, batch_size: int, *, index: int, count: int
) -> Input[pa.Table] | None:
    """What worker `index` of `count` reads; None if the data is not followed."""
    if options.is_topic:
        address = TopicAddress.parse(options.data)
        settings = topic_settings(options, batch_size)
        columns = options.columns()
        wide = with_wide_numbers(schema, columns.numbers)

        def check(table: pa.Table, where: str) -> None:
            check_values(table, columns, where)

        return KafkaTopic(address, wide, settings, index=index, count=count, check=check)

    files = file_settings(options, batch_size)
    if files is None:
        return None

    return FileStream(files, schema, index=index, count=count)


def file_settings(options: CtrOptions, batch_size: int) -> StreamSettings | None:
    """How files are followed; None if they are not."""
    idle_s = options.idle_s()
    if idle_s is None:
        return None

    return StreamSettings(
        patterns=names(options.data),
        window=options.window(),
        batch_size=batch_size,
        idle_s=idle_s,
        text_columns=names(options.text),
        header=names(options.header),
        is_skipping=options.on_lost_data == "skip",
    )


def topic_settings(options: CtrOptions, batch_size: int) -> KafkaSettings:
    idle_s = options.idle_s()
    return KafkaSettings(
        batch_size,
        timeout_s=options.kafka_timeout_s,
        is_skipping=options.on_lost_data == "skip",
        idle_s=_NO_WAIT_S if idle_s is None else idle_s,
    )


def sample_file(options: CtrOptions, model_dir: Path, num_workers: int) -> Path:
    """A file with the oldest messages of the topic, from which columns and types are known.

    It is made once for a model, so that the types stay the same however the topic goes on.
    """
    address = TopicAddress.parse(options.data)
    path = model_dir / f"sample-{address.topic}.parquet"
    if path.exists() and _has_columns(path, options):
        return path

    sample = read_sample(address, topic_settings(options, 1), _SAMPLED)
    if sample.num_partitions < num_workers:
        partitions = counted(sample.num_partitions, "partition")
        raise BadData(
            f"topic {address.topic} has {partitions}, too few for "
            f"{num_workers} workers; use --num-workers {sample.num_partitions}"
        )

    table = sample_of(sample.messages, f"topic {address.topic}", options.columns().numbers)
    unfinished = path.with_suffix(".unfinished")
    pa.parquet.write_table(table, unfinished)
    os.replace(unfinished, path)
    return path


def _has_columns(path: Path, options: CtrOptions) -> bool:
    known = set(pa.parquet.read_schema(path).names)
    wanted = options.columns().names
    return known.issuperset(wanted)
