"""`make bench-cluster`: the data plane through the SDK, against processes on loopback. Prints JSON
lines.

cluster.py [w2] [lanes] [clients] [latency] [training] [float16]     all of them by default, in
about four minutes
"""

import argparse
import itertools
import multiprocessing
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import w2
from report import report

from megalith.client import Adagrad, Ids, Segment, TableConfig, connect
from support.processes import Processes

TABLE = TableConfig(
    "rows", (Segment(w2.DIM, optimizer=Adagrad(w2.RATE, initial_accumulator_value=w2.ACCUMULATOR)),)
)
_checks = itertools.count()  # each takes new ids: what others trained has another state


@contextmanager
def cluster_of(num_ps, rows=w2.ROWS, **ps_settings):
    """A cluster without workers whose table holds `rows` rows.

    Gives a function that connects to it.
    """
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        processes.start_controller(num_ps=num_ps, num_workers=0)
        for index in range(num_ps):
            processes.start_member("ps", index, **ps_settings)

        def connected(**options):
            return connect(model_dir=str(processes.model_dir), **options)

        connected.model_dir = str(processes.model_dir)
        with connected() as filler:
            filler.create_tables(TABLE)
            fill(filler, rows)
        yield connected


def fill(cluster, rows, at_once=1 << 18):
    zeros = np.zeros((at_once, w2.DIM), np.float32)
    for begin in range(0, rows, at_once):
        ids = w2.keys_of(np.arange(begin, min(begin + at_once, rows)))
        cluster.push({"rows": (Ids(ids, distinct=True), zeros[: ids.size])})


def steps(peer, cluster, batches, **conditions):
    """The loop of W2 over a connected cluster, after a check that it computes Adagrad."""
    gradients = np.full((w2.EXAMPLES * w2.SLOTS, w2.DIM), 0.01, np.float32)

    def pull(ids):
        return cluster.pull({"rows": ids}).rows["rows"]

    def push(ids, rows):
        cluster.push({"rows": (ids, gradients[: ids.size])})

    new = w2.keys_of(w2.ROWS + np.arange(100) + 100 * next(_checks))
    push(new, None)
    step = w2.RATE * 0.01 / (np.sqrt(w2.ACCUMULATOR + 1e-4) + w2.EPSILON)
    np.testing.assert_allclose(
        pull(new), np.full((100, w2.DIM), -step), rtol=1e-3
    )  # float16 has three digits
    w2.run_steps(
        peer,
        pull,
        push,
        batches,
        mean_unique=int(np.mean([ids.size for ids in batches])),
        **conditions,
    )


def bench_w2():
    """The path that users get: plain arrays of ids, float32, default settings."""
    with cluster_of(2) as connected, connected() as cluster:
        steps("megalith", cluster, w2.distinct_batches())


def bench_lanes():
    """The same with the lane off, with half precision, and with repeated ids left in."""
    with cluster_of(2) as connected:
        batches = w2.distinct_batches()
        for peer, options in (
            ("megalith_unary", {"bulk_lane": False}),
            ("megalith_float16", {"row_dtype": "float16", "gradient_dtype": "float16"}),
        ):
            with connected(**options) as cluster:
                steps(peer, cluster, batches)
        with connected() as cluster:
            steps(
                "megalith_repeated_ids",
                cluster,
                [w2.keys_of(batch.ravel()) for batch in w2.batches()],
            )


def bench_clients(seconds=2.5, rounds=2):
    """One ps, 1, 2 and 4 clients at once: ids pulled and pushed in all, and small pulls
    meanwhile."""
    with cluster_of(1, rows=2_000_000) as connected:
        rng = np.random.default_rng(5)
        batches = [w2.keys_of(rng.choice(2_000_000, 20_000, replace=False)) for _ in range(16)]
        for count in (1, 2, 4):
            conditions = {"ps": 1, "clients": count, "batch": 20_000}
            rates, latencies = zip(
                *(under_load(connected, batches, count, seconds) for _ in range(rounds)),
                strict=True,
            )
            w2.report_best("total_ids", "M ids/s (pulled and pushed)", rates, **conditions)
            for percentile in (50, 99):
                values = [1e3 * np.percentile(each, percentile) for each in latencies]
                w2.report_best(
                    f"loaded_pull_1000_p{percentile}", "ms", values, higher=False, **conditions
                )


def under_load(connected, batches, count, seconds):
    with connected() as prober:
        return measured([Load(connected.model_dir, batches) for _ in range(count)], prober, seconds)


class Load:
    """A client process that pulls and pushes until told to stop."""

    def __init__(self, model_dir, batches):
        context = multiprocessing.get_context("spawn")
        self._done_ids, self._stopping = context.Value("q", 0), context.Event()
        self._process = context.Process(
            target=load, args=(model_dir, batches, self._done_ids, self._stopping)
        )
        self._process.start()
        while not self.done_ids:
            time.sleep(0.05)

    @property
    def done_ids(self):
        return self._done_ids.value

    def stop(self):
        self._stopping.set()
        self._process.join()


def load(model_dir, batches, done_ids, stopping):
    gradients = np.full((batches[0].size, w2.DIM), 0.01, np.float32)
    with connect(model_dir=model_dir) as cluster:
        for ids in itertools.cycle(batches):
            cluster.pull({"rows": ids})
            cluster.push({"rows": (ids, gradients)})
            done_ids.value += ids.size
            if stopping.is_set():
                return


def measured(loads, prober, seconds):
    """(million ids per second of all loads, seconds of each small pull beside them)."""
    small = w2.keys_of(np.arange(1000))
    for _ in range(20):
        prober.pull({"rows": small})
    before, began, latencies = sum(load.done_ids for load in loads), time.perf_counter(), []
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        prober.pull({"rows": small})
        latencies.append(time.perf_counter() - start)
        time.sleep(0.005)
    done, elapsed = sum(load.done_ids for load in loads) - before, time.perf_counter() - began
    for load in loads:
        load.stop()
    return done / elapsed / 1e6, latencies


def bench_latency(count=2000):
    """A pull of 1,000 ids from a cluster that does nothing else."""
    with cluster_of(1, rows=1_000_000) as connected, connected() as cluster:
        small, seconds = w2.keys_of(np.arange(1000)), []
        for _ in range(count):
            start = time.perf_counter()
            cluster.pull({"rows": small})
            seconds.append(time.perf_counter() - start)
        for percentile in (50, 99):
            value = 1e3 * np.percentile(seconds[100:], percentile)
            w2.report_best(f"idle_pull_1000_p{percentile}", "ms", [value], higher=False, ps=1)


def bench_training(rounds=2):
    """The demo with one worker: one call after the other, and with overlapping steps.

    In turns, the best of each.
    """
    for batch_size, examples in ((2048, 2_000_000), (8192, 4_000_000), (32768, 8_000_000)):
        conditions = {"task": "clicks", "ps": 2, "workers": 1, "batch_size": batch_size}
        rates, aucs = {}, {}
        for _ in range(rounds):
            for case, settings in (
                ("synchronous", {"staleness": 0, "prefetch_batches": 0}),
                ("overlapped", {}),
            ):
                rate, aucs[case] = trained(examples, batch_size, **settings)
                rates.setdefault(case, []).append(rate)
        for case, measured_rates in rates.items():
            w2.report_best(
                f"training_{case}",
                "examples/s",
                measured_rates,
                auc=round(aucs[case], 5),
                examples=examples,
                **conditions,
            )
        report(
            "training_overlap",
            max(rates["overlapped"]) / max(rates["synchronous"]),
            "x",
            **conditions,
        )


def bench_float16(examples=4_000_000, batch_size=8192):
    """What half precision on the wire does to the demo's AUC and speed, by direction."""
    for row_dtype, gradient_dtype in itertools.product(("float32", "float16"), repeat=2):
        rate, auc = trained(
            examples, batch_size, row_dtype=row_dtype, gradient_dtype=gradient_dtype
        )
        conditions = {
            "task": "clicks",
            "ps": 2,
            "workers": 1,
            "batch_size": batch_size,
            "examples": examples,
        }
        conditions |= {"row_dtype": row_dtype, "gradient_dtype": gradient_dtype}
        report("float16_training", rate, "examples/s", **conditions)
        report("float16_auc", auc, "AUC", **conditions)


def trained(examples, batch_size, **settings):
    """(examples per second between the first and the last step seen, AUC)."""
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        processes.start_controller(num_ps=2, num_workers=1, stay_up=True)
        for index in range(2):
            processes.start_member("ps", index)
        processes.start_member(
            "worker", 0, batch_size=batch_size, num_examples=examples, heartbeat_s=0.1, **settings
        )
        job, seen = processes.job(), []
        while not (status := job.status()).results:
            done = sum(member.examples for member in status.members)
            if done and (not seen or done > seen[-1][1]):
                seen.append((time.perf_counter(), done))
            time.sleep(0.1)  # asking more often would take a tenth of a core
        (first_s, first), (last_s, last) = seen[len(seen) // 10], seen[-1]
        return (last - first) / (last_s - first_s), status.results["auc"]


BENCHMARKS = {
    "w2": bench_w2,
    "lanes": bench_lanes,
    "clients": bench_clients,
    "latency": bench_latency,
    "training": bench_training,
    "float16": bench_float16,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], default=[])
    for name in parser.parse_args().names or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
