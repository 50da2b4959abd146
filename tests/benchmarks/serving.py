"""`make bench-serving`: how fresh replicas are, and how fast they answer. Prints JSON lines.

serving.py [freshness] [lookups] [tables] [bootstrap] [bytes]     all of them by default

freshness   A worker trains `clicks` on 2 ps, 2 replicas follow. A client assigns one row after the
            other, and asks both replicas until both show it: seconds from the acknowledgement of the
            ps. For several --delta-every-s. Beside it the examples/s of the worker, with replicas
            and without, before and after: a shared machine is not as fast all the time.
lookups     Calls of 1,000 ids each to one replica: latency idle and beside training, and calls/s of
            1, 2 and 4 clients.
tables      Rows/s of a lookup in one thread: a serving table in float32 over a training table.
bootstrap   SERVING_ROWS rows (5 M) until a new replica is ready, out of snapshots and out of a
            checkpoint, and 1 M changed rows until one that was away has them.
bytes       What a changed row costs on the wire, by compressor: in all, and for its numbers. The rest
            is its id and the time of its last update.
"""

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from report import report

import megalith.serving as serving
from megalith.client import (
    Adagrad,
    FixedR8,
    Fp16,
    Fp32,
    Ids,
    OneBit,
    RandomUniform,
    Segment,
    TableConfig,
    connect,
)
from megalith.engine.serving_table import ServingTable
from megalith.engine.table.embedding_table import EmbeddingTable
from support.processes import Processes
from support.replicas import ReplicaReader
from support.waiting import wait_until

DIM = 16
PROBES = int(os.environ.get("SERVING_PROBES", "200"))
ROWS = int(os.environ.get("SERVING_ROWS", "5000000"))
EVERY_S = (0.1, 0.25, 1.0, 10.0)
AT_ONCE = 1 << 18


def table(name, compressor=None):
    segment = Segment(DIM, RandomUniform(-0.1, 0.1), Adagrad(0.05), compressor or Fp32())
    return TableConfig(name, (segment,))


@contextmanager
def job(num_workers=0, num_replicas=0, delta_every_s=0.25):
    """Processes on loopback; gives them, and a reader of each replica."""
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        processes.start_controller(num_ps=2, num_workers=num_workers)
        for index in range(2):
            processes.start_member("ps", index, delta_every_s=delta_every_s)
        for index in range(num_workers):
            processes.start_member("worker", index)
        processes.client = lambda: connect(model_dir=str(processes.model_dir), timeout_s=600)
        processes.replicas = [
            processes.start_member("replica", index) for index in range(num_replicas)
        ]
        readers = [ReplicaReader(each.reported("address")) for each in processes.replicas]
        for reader in readers:
            wait_until(lambda each=reader: each.status().is_ready, 300)
        yield processes, readers


def examples_per_s(control, seconds):
    """Of the worker, over so many seconds."""

    def examples():
        return sum(each.examples for each in control.status().members if each.role == "worker")

    wait_until(lambda: control.status().global_step > 100, 300)
    time.sleep(3)
    before, began = examples(), time.perf_counter()
    time.sleep(seconds)
    return (examples() - before) / (time.perf_counter() - began)


def measure_freshness():
    for every_s in EVERY_S:
        with job(num_workers=1, delta_every_s=every_s) as (processes, _):
            alone = examples_per_s(processes.job(), 15)

        with job(1, 2, every_s) as (processes, readers):
            control = processes.job()
            wait_until(lambda job=control: job.status().global_step > 100, 300)
            seconds = probe(processes, readers, min(PROBES, max(20, int(60 / every_s))))
            conditions = {"delta_every_s": every_s, "probes": seconds.size, "replicas": 2}
            report("serving_freshness_p50", float(np.percentile(seconds, 50)), "s", **conditions)
            report("serving_freshness_p99", float(np.percentile(seconds, 99)), "s", **conditions)
            beside = examples_per_s(control, 15)

        with job(num_workers=1, delta_every_s=every_s) as (processes, _):
            alone = (alone + examples_per_s(processes.job(), 15)) / 2

        report("serving_training_alone", alone, "examples/s", **conditions)
        share = beside / alone
        report("serving_training_share", share, "of the speed without replicas", **conditions)


def probe(processes, readers, count):
    """Seconds from the acknowledgement of an assigned row until both replicas show it."""
    taken = []
    with connect(model_dir=str(processes.model_dir)) as cluster:
        cluster.create_tables(table("probe"))
        cluster.assign_rows({"probe": ([1], np.zeros((1, DIM), np.float32))})
        wait_until(lambda: all(_shows(reader, 0.0) for reader in readers), 60)
        for number in range(1, count + 1):
            value = float(number)
            cluster.assign_rows({"probe": ([1], np.full((1, DIM), value, np.float32))})
            began = time.perf_counter()
            for reader in readers:
                while not _shows(reader, value):
                    time.sleep(0.002)

            taken.append(time.perf_counter() - began)
            time.sleep(0.01 * (number % 7))  # not in step with the sealing

    return np.array(taken)


def _shows(reader, value):
    try:
        return reader.lookup("probe", [1])[0, 0] == value
    except Exception:  # the table is not there yet
        return False


def fill(cluster, name, rows):
    """Make so many rows; their ids are 0 and so on."""
    zeros = np.zeros((AT_ONCE, DIM), np.float32)
    for begin in range(0, rows, AT_ONCE):
        ids = np.arange(begin, min(begin + AT_ONCE, rows))
        cluster.push({name: (Ids(ids, distinct=True), zeros[: ids.size])})


def measure_lookups():
    with job(num_replicas=1) as (processes, readers), processes.client() as cluster:
        cluster.create_tables(table("rows"))
        fill(cluster, "rows", 1_000_000)
        readers[0].wait_for_a_version()
        wait_until(lambda: readers[0].status().rows == 1_000_000, 120)
        address = processes.replicas[0].reported("address")
        latency(address, "idle")
        for clients in (1, 2, 4):
            throughput(address, clients)

        stop = multiprocessing.Event()
        trainer = multiprocessing.Process(
            target=_train, args=(str(processes.model_dir), stop), daemon=True
        )
        trainer.start()
        time.sleep(2)
        latency(address, "beside changes of 50,000 rows a second")
        stop.set()
        trainer.join()


def _train(model_dir, stop):
    rng = np.random.default_rng(0)
    with connect(model_dir=model_dir) as cluster:
        while not stop.is_set():
            ids = np.unique(rng.integers(0, 1_000_000, 5000))
            cluster.push({"rows": (ids, np.full((ids.size, DIM), 0.01, np.float32))})
            time.sleep(0.1)


def latency(address, load):
    rng = np.random.default_rng(1)
    taken = []
    with serving.connect(replicas=[address]) as client:
        for _ in range(1000):
            ids = rng.integers(0, 1_000_000, 1000)
            began = time.perf_counter()
            client.lookup({"rows": ids})
            taken.append(time.perf_counter() - began)

    for percentile in (50, 99):
        value = float(np.percentile(taken, percentile)) * 1e3
        report(f"serving_lookup_p{percentile}", value, "ms", ids=1000, load=load)


def throughput(address, clients):
    with multiprocessing.Pool(clients) as pool:
        began = time.perf_counter()
        calls = sum(pool.map(_look_up, [address] * clients))
        seconds = time.perf_counter() - began

    report("serving_lookups", calls / seconds, "calls/s", ids=1000, clients=clients)


def _look_up(address):
    ids = np.random.default_rng(os.getpid()).integers(0, 1_000_000, 1000)
    with serving.connect(replicas=[address]) as client:
        for _ in range(1000):
            client.lookup({"rows": ids})

    return 1000


def measure_tables():
    ids = np.random.default_rng(3).permutation(2_000_000).astype(np.int64)
    values = np.random.default_rng(4).normal(size=(ids.size, DIM)).astype(np.float32)
    trained = EmbeddingTable(table("trained"))
    served = ServingTable(table("served"))
    for begin in range(0, ids.size, AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        trained.assign(ids[part], values[part])
        served.upsert(ids[part], values[part])

    batches = np.split(ids[: 65_536 * 24], 24)
    best = {}
    for _ in range(5):
        for name, each in (("trained", trained), ("served", served)):
            began = time.perf_counter()
            for batch in batches:
                each.lookup(batch)

            rate = 65_536 * len(batches) / (time.perf_counter() - began)
            best[name] = max(best.get(name, 0.0), rate)

    report("serving_table_lookup", best["served"] / 1e6, "M rows/s", rows=ids.size, dim=DIM)
    share = best["served"] / best["trained"]
    report("serving_table_lookup_share", share, "of a training table", rows=ids.size, dim=DIM)
    for compressor in (Fp32(), Fp16(), FixedR8(1.0), OneBit()):
        row_bytes = ServingTable(table("t", compressor)).row_bytes
        report("serving_row_bytes", row_bytes, "bytes", dim=DIM, compressor=compressor.name)


def bootstrap(processes, index, source):
    """A reader of a new replica, once that has all rows; its start is part of the time."""
    began = time.perf_counter()
    late = processes.start_member("replica", index)
    reader = ReplicaReader(late.reported("address"))
    wait_until(lambda: reader.status().is_ready, 600)
    wait_until(lambda: reader.status().rows == ROWS, 600)
    rate = ROWS / (time.perf_counter() - began)
    report("serving_bootstrap", rate, "rows/s", rows=ROWS, source=source)
    return reader


def measure_bootstrap():
    with job(num_replicas=1) as (processes, readers), processes.client() as cluster:
        cluster.create_tables(table("rows"))
        fill(cluster, "rows", ROWS)
        reader = bootstrap(processes, 1, "snapshots of 2 ps")
        cluster.controller.save()
        other = bootstrap(processes, 2, "a checkpoint")
        assert all(ps.resumed_from_save and not ps.snapshots for ps in other.status().ps)

        wait_until(lambda: readers[0].status().rows == ROWS, 600)
        away = processes.replicas[0]
        away.pause()
        changed = min(ROWS, 1_000_000)
        fill(cluster, "rows", changed)
        before = sum(ps.rows_applied for ps in reader.status().ps)
        away.signal(signal.SIGCONT)
        began = time.perf_counter()
        readers[0].wait_for_a_version()
        rate = changed / (time.perf_counter() - began)
        report("serving_catch_up", rate, "rows/s", rows=changed, before=before)


def measure_bytes():
    for compressor in (Fp32(), Fp16(), FixedR8(1.0), OneBit()):
        with job(num_replicas=1) as (processes, readers), processes.client() as cluster:
            cluster.create_tables(table("rows", compressor))
            fill(cluster, "rows", 100_000)
            wait_until(lambda each=readers[0]: each.status().rows == 100_000, 120)
            readers[0].wait_for_a_version()
            before = _applied(readers[0])
            fill(cluster, "rows", 100_000)
            readers[0].wait_for_a_version()
            rows, received = _applied(readers[0]) - before
            numbers = ServingTable(table("rows", compressor)).stored_bytes
            report(
                "serving_bytes_per_changed_row",
                received / rows,
                "bytes",
                dim=DIM,
                compressor=compressor.name,
                numbers=numbers,
                id_and_time=received / rows - numbers,
            )


def _applied(reader):
    status = reader.status()
    rows = sum(ps.rows_applied for ps in status.ps)
    received = sum(ps.bytes_received for ps in status.ps)
    return np.array([rows, received])


PARTS = {
    "freshness": measure_freshness,
    "lookups": measure_lookups,
    "tables": measure_tables,
    "bootstrap": measure_bootstrap,
    "bytes": measure_bytes,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    for name in parser.parse_args().parts or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
