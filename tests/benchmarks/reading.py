"""Rows per second that one core reads from files and from Kafka into batches of ids: JSON lines.

    make bench-reading
    PYTHONPATH=tests python tests/benchmarks/reading.py [--rows 200000] [--reps 3] [--only csv]

The workload is W3: 26 columns of ids, 13 numbers, batches of 4096. `deepfm step` is how many rows
the model of `megalith train ctr` computes on the same core, without any server. The best of the
repetitions counts: on a shared machine the others measure the neighbours.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from report import report

from megalith.protos import example_pb2
from megalith.tasks.ctr import CtrTask
from megalith.tasks.ctr_options import CtrOptions
from megalith.tasks.input.dataset import Dataset
from megalith.tasks.input.examples import examples_of
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.kafka import KafkaSettings, KafkaTopic, TopicAddress
from megalith.tasks.input.tf_records import write_records

BATCH = 4096
IDS = [f"id_{number}" for number in range(26)]
NUMBERS = [f"x_{number}" for number in range(13)]


def made(num_rows, as_text):
    rng = np.random.default_rng(5)
    columns = {"label": rng.integers(0, 2, num_rows)}
    for name in IDS:
        values = np.minimum(rng.zipf(1.2, num_rows), 1_000_000)
        columns[name] = np.char.mod("%x", values) if as_text else values
    for name in NUMBERS:
        columns[name] = rng.random(num_rows, np.float32)
    return pa.table(columns)


def options(path):
    return CtrOptions(
        data=str(path),
        label="label",
        features=",".join(IDS),
        dense=",".join(NUMBERS),
        dim=16,
        shuffle="yes",
        threads=1,
    )


def best(work, reps):
    seconds = []
    for _ in range(reps):
        started = time.perf_counter()
        rows = work()
        seconds.append(time.perf_counter() - started)
    return rows / min(seconds)


def read_files(path):
    told = options(path)
    data = Dataset(DataIndex.build([str(path)]), told.columns(), batch_size=BATCH, shuffle_seed=1)
    return sum(len(data.batch(number).examples) for number in range(data.batches_per_epoch))


def write_examples(table, path):
    def encoded():
        for row in table.to_pylist():
            example = example_pb2.Example()
            for name, value in row.items():
                feature = example.features.feature[name]
                kind = feature.float_list if name in NUMBERS else feature.int64_list
                kind.value.append(value)
            yield example.SerializeToString()

    write_records(path, encoded())


def read_topic(broker, table):
    told = options("x.csv")
    topic = KafkaTopic(
        TopicAddress.parse(broker.url("w3")),
        table.schema,
        KafkaSettings(BATCH, idle_s=1.0),
    )
    rows = 0
    seconds = 0.0
    started = time.perf_counter()
    for batch in topic.batches(b""):
        rows += len(examples_of(batch.batch, told.columns(), batch.where))
        seconds = time.perf_counter() - started
    return rows, seconds


def kafka(table, reps):
    from support.kafka import mock_broker

    with mock_broker() as broker:
        small = table.slice(0, 20_000)  # the mock keeps 5 MB of a partition
        broker.send("w3", [json.dumps(row).encode() for row in small.to_pylist()])
        return max(
            rows / seconds for rows, seconds in (read_topic(broker, table) for _ in range(reps))
        )


def step(path, reps):
    """Rows that the DeepFM of `megalith train ctr` computes, without pull and push."""
    task = CtrTask(options(path), batch_size=BATCH, num_examples=0, seed=1)
    batch = task.batch(0)
    rng = np.random.default_rng(2)
    rows = {}
    for table in task.tables:
        ids = batch.located.ids[table.name]
        rows[table.name] = rng.random((len(ids), table.dim), np.float32) * 0.01
    variables = {each.name: np.asarray(each.initial) for each in task.variables}

    def work():
        for _ in range(5):
            task.gradients(batch, rows, variables)
        return 5 * BATCH

    work()
    return best(work, reps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--only", default="step,parquet,parquet text,csv,tfrecord,kafka")
    given = parser.parse_args()
    only = given.only.split(",")
    pa.set_cpu_count(1)

    table = made(given.rows, False)
    conditions = {"rows": given.rows, "batch": BATCH, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        pa.parquet.write_table(table, path / "a.parquet", row_group_size=100_000)
        if "step" in only:
            report("deepfm step", step(path / "a.parquet", given.reps), "rows/s", **conditions)
        if "parquet" in only:
            speed = best(lambda: read_files(path / "a.parquet"), given.reps)
            report("parquet, integers", speed, "rows/s", **conditions)
        if "parquet text" in only:
            text = made(given.rows, True)
            pa.parquet.write_table(text, path / "t.parquet", row_group_size=100_000)
            speed = best(lambda: read_files(path / "t.parquet"), given.reps)
            report("parquet, text", speed, "rows/s", **conditions)
        if "csv" in only:
            pa.csv.write_csv(table, path / "a.csv")
            speed = best(lambda: read_files(path / "a.csv"), given.reps)
            report("csv, integers", speed, "rows/s", **conditions)
        if "tfrecord" in only:
            write_examples(table.slice(0, 50_000), path / "a.tfrecord")
            speed = best(lambda: read_files(path / "a.tfrecord"), given.reps)
            report("tfrecord, integers", speed, "rows/s", **(conditions | {"rows": 50_000}))
        if "kafka" in only:
            speed = kafka(table, given.reps)
            report("kafka, JSON", speed, "rows/s", **(conditions | {"rows": 20_000}))


if __name__ == "__main__":
    main()
