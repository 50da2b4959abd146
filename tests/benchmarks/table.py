"""Speed and memory of one embedding table; one JSON object a line, the best of the repetitions and
their range.

    python tests/benchmarks/table.py [w1] [shapes] [growth] [curve] [threads] [ready] [ids]    all
    of them by default

w1      10 M random ids, 16 floats + 16 Adagrad accumulators, batches of 65,536, one thread on one core
shapes  the same with two slices (FTRL 1 + Adagrad 16), and with 8 and 64 floats
growth  from empty to 10 M: slowest against median batch, also without what the operating system takes to give memory,
        and peak memory against the final
curve   nanoseconds an id at 1, 3, 10, 30 and 50 M rows
threads lookups and updates on two threads against one
ids     inserting, loading and looking up 300,000 ids that are random, sorted, clustered, in the order of a dump, or
        chosen to collide under the hash without its secret: seconds, and how many times those for random ids
ready   seconds from the start of a process to the first update and lookup, with and without cached kernels

TABLE_ROWS and TABLE_REPS change the sizes. Ids are splitmix64 of the row number; uniform batches
draw rows evenly, Zipf batches by rank with exponent 1.05, hot ranks scattered over all rows.
Updates take the distinct ids of a batch and note them in the delta log; `_first_touch` with a set
sealed before each pass, so that (uniform) nearly all of them are new to it, and `_untracked`
without a log. `tracking_cost` is how much longer an update with a log takes than one without, in
the same run.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.schema import Adagrad, Ftrl, Segment, TableConfig, Zeros

ROWS = int(os.environ.get("TABLE_ROWS", os.environ.get("PEERS_ROWS", "10000000")))
REPS = int(os.environ.get("TABLE_REPS", os.environ.get("PEERS_REPS", "5")))
BATCH, BATCHES, ZIPF = 65_536, 32, 1.05
RATE = 0.05
DEFAULT_CAPACITY = TableConfig("t", (Segment(1),)).touched_capacity

Keys = NDArray[np.int64]


def keys_of(rows: Keys) -> Keys:
    """The id of each row number, all distinct."""
    with np.errstate(over="ignore"):
        z = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).view(np.int64)


def row_batches(kind: str, rows: int, batches: int = BATCHES) -> list[Keys]:
    rng = np.random.default_rng(1)
    if kind == "uniform":
        return [rng.integers(0, rows, BATCH) for _ in range(batches)]
    a = 1.0 - ZIPF
    ranks = [
        (((rows + 1.0) ** a - 1.0) * rng.random(BATCH) + 1.0) ** (1.0 / a) for _ in range(batches)
    ]
    return [np.minimum(r.astype(np.int64) - 1, rows - 1) * 7_368_787 % rows for r in ranks]


def lookups(kind: str, rows: int) -> list[Keys]:
    return [keys_of(batch) for batch in row_batches(kind, rows)]


def updates(kind: str, rows: int) -> list[Keys]:
    """The distinct ids of each batch, in no order."""
    shuffled = np.random.default_rng(1).permutation
    return [shuffled(keys_of(np.unique(batch))) for batch in row_batches(kind, rows)]


def report(
    metric: str, unit: str, values: Sequence[float], higher: bool = True, **extra: Any
) -> None:
    best = max(values) if higher else min(values)
    line = {
        "workload": "w1",
        "peer": "megalith",
        "metric": metric,
        "unit": unit,
        "best": round(best, 4),
    }
    line |= {"lo": round(min(values), 4), "hi": round(max(values), 4), "reps": len(values)}
    print(json.dumps(line | {"load1": round(os.getloadavg()[0], 2)} | extra), flush=True)


def rates(
    call: Callable[[Keys], object],
    batches: list[Keys],
    reps: int = REPS,
    before: Callable[[], object] = lambda: None,
) -> list[float]:
    """Millions of ids a second, for each pass over the batches after a first one.

    `before` each pass is not timed.
    """
    for batch in batches:
        call(batch)
    total, out = sum(batch.size for batch in batches), []
    for _ in range(reps):
        before()
        start = time.perf_counter()
        for batch in batches:
            call(batch)
        out.append(total / (time.perf_counter() - start) / 1e6)
    return out


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def table_of(*segments: Segment) -> EmbeddingTable:
    return EmbeddingTable(TableConfig("bench", segments))


def adagrad(dim: int) -> Segment:
    return Segment(dim, Zeros(), Adagrad(RATE, 0.1))


class Fill(NamedTuple):
    """Seconds of each batch, those of them that were not spent in the operating system, and the
    highest memory seen."""

    seconds: list[float]
    own_s: list[float]
    peak: int


def fill(table: EmbeddingTable, rows: int) -> Fill:
    """Insert ids 0..rows."""
    values, seconds, own_s, peak = np.full((BATCH, table.layout.dim), 0.01, np.float32), [], [], 0
    for begin in range(0, rows, BATCH):
        keys = keys_of(np.arange(begin, min(begin + BATCH, rows)))
        start, own = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        table.assign(keys, values[: keys.size])
        seconds.append(time.perf_counter() - start)
        own_s.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - own)
        peak = max(peak, rss_bytes())
    return Fill(seconds, own_s, peak)


def warm_up(*segments: Segment) -> None:
    """Compile, so that neither time nor memory of it is measured."""
    table = table_of(*segments)
    fill(table, BATCH)
    table.apply_gradients(np.arange(2), np.zeros((2, table.layout.dim), np.float32))
    table.lookup(np.arange(2))


def measure(label: str, segments: tuple[Segment, ...]) -> EmbeddingTable:
    """Insert, lookup and update; the names of the metrics end in `label`."""
    warm_up(*segments)
    row_bytes = 4 * table_of(*segments).layout.width
    inserts = []
    for rep in range(REPS if not label else 1):
        before = rss_bytes()
        table = table_of(*segments)
        inserts.append(ROWS / sum(fill(table, ROWS).seconds) / 1e6)
        if rep == 0:
            over = (rss_bytes() - before) / ROWS - row_bytes
            report("overhead" + label, "bytes/entry beyond payload", [over], higher=False)
    report("insert" + label, "M ids/s", inserts)
    dim = table.layout.dim
    out, grads = np.empty((BATCH, dim), np.float32), np.full((BATCH, dim), 0.01, np.float32)
    grads *= np.arange(grads.size, dtype=np.float32).reshape(grads.shape) % 7 - 3

    def seal() -> None:
        log = table.changes
        log.acknowledge("benchmark", log.seal())

    for kind in ("uniform", "zipf"):
        report(
            f"lookup_{kind}{label}",
            "M ids/s",
            rates(lambda keys: table.lookup(keys, out), lookups(kind, ROWS)),
        )
        best = {}
        for tracking, capacity in (
            ("", DEFAULT_CAPACITY),
            ("_first_touch", DEFAULT_CAPACITY),
            ("_untracked", 0),
        ):
            table.reconfigure(replace(table.config, touched_capacity=capacity))
            pushed = rates(
                lambda keys: table.apply_gradients(
                    keys, grads[: keys.size], req_time_s=1_700_000_000
                ),
                updates(kind, ROWS),
                before=seal if tracking == "_first_touch" else lambda: None,
            )
            report(f"update_{kind}{tracking}{label}", "M ids/s", pushed)
            best[tracking] = max(pushed)

        for tracking in ("", "_first_touch"):
            cost = best["_untracked"] / best[tracking]
            report(f"tracking_cost_{kind}{tracking}{label}", "x", [cost], higher=False)
    return table


def bench_w1() -> None:
    os.sched_setaffinity(0, {0})
    measure("", (adagrad(16),))
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def bench_shapes() -> None:
    measure("_two_slices", (Segment(1, Zeros(), Ftrl(RATE)), adagrad(16)))
    for dim in (8, 64):
        measure(f"_dim{dim}", (adagrad(dim),))


def bench_growth() -> None:
    warm_up(adagrad(16))
    ratios, own_ratios, peaks = [], [], []
    for _ in range(REPS):
        before = rss_bytes()
        table = table_of(adagrad(16))
        filled = fill(table, ROWS)
        ratios.append(slowest(filled.seconds))
        own_ratios.append(slowest(filled.own_s))
        peaks.append((filled.peak - before) / (rss_bytes() - before))
        del table  # before the next one measures what it adds
    report("growth_slowest_batch", "x of the median", ratios, higher=False)
    report(
        "growth_slowest_batch_own",
        "x of the median, without the operating system",
        own_ratios,
        higher=False,
    )
    report("growth_peak_memory", "x of the final", peaks, higher=False)


def slowest(seconds: list[float]) -> float:
    """The slowest batch against the median one; the last is a short one."""
    full = sorted(seconds[:-1])
    return full[-1] / full[len(full) // 2]


def bench_curve() -> None:
    warm_up(adagrad(16))
    for millions in (1, 3, 10, 30, 50):
        rows, table = millions * 1_000_000, table_of(adagrad(16))
        fill(table, rows)
        out, grads = np.empty((BATCH, 16), np.float32), np.full((BATCH, 16), 0.01, np.float32)
        looked = rates(lambda keys: table.lookup(keys, out), lookups("uniform", rows), 3)  # noqa: B023
        pushed = rates(
            lambda keys: table.apply_gradients(keys, grads[: keys.size]),  # noqa: B023
            updates("uniform", rows),
            3,
        )
        report(f"lookup_ns_{millions}m", "ns/id", [1e3 / rate for rate in looked], higher=False)
        report(f"update_ns_{millions}m", "ns/id", [1e3 / rate for rate in pushed], higher=False)


def bench_threads() -> None:
    table = measure_table()
    grads = np.full((BATCH, 16), 0.01, np.float32)
    outs = {i: np.empty((BATCH, 16), np.float32) for i in range(2)}
    looks, pushes = lookups("uniform", ROWS), updates("uniform", ROWS)

    def run(threads: int, call: Callable[[int, Keys], object], batches: list[Keys]) -> float:
        def work(number: int) -> None:
            for batch in batches[number::threads] * 3:
                call(number, batch)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return 3 * sum(batch.size for batch in batches) / (time.perf_counter() - start) / 1e6

    for name, call, batches in (
        ("lookup", lambda i, keys: table.lookup(keys, outs[i]), looks),
        ("update", lambda i, keys: table.apply_gradients(keys, grads[: keys.size]), pushes),
    ):
        one, two = zip(
            *((run(1, call, batches), run(2, call, batches)) for _ in range(REPS)), strict=True
        )
        report(f"{name}_one_thread", "M ids/s", one)
        report(f"{name}_two_threads", "M ids/s", two)
        report(f"{name}_speedup", "x of one thread", [b / a for a, b in zip(one, two, strict=True)])


def measure_table() -> EmbeddingTable:
    table = table_of(adagrad(16))
    fill(table, ROWS)
    return table


READY = """
import time; start = time.perf_counter()
import numpy as np
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.schema import Adagrad, Segment, TableConfig, Zeros
table = EmbeddingTable(TableConfig("t", (Segment(16, Zeros(), Adagrad()),)))
table.apply_gradients(np.arange(9), np.ones((9, 16), np.float32))
table.lookup(np.arange(9))
print(time.perf_counter() - start)
"""


def bench_ready() -> None:
    for name in ("ready_cold", "ready_warm"):
        seconds = []
        for _ in range(2 if name == "ready_cold" else REPS):
            with tempfile.TemporaryDirectory() as cold:
                environment = dict(os.environ) | (
                    {"NUMBA_CACHE_DIR": cold} if name == "ready_cold" else {}
                )
                done = subprocess.run(
                    [sys.executable, "-c", READY],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                seconds.append(float(done.stdout))
        report(name, "s", seconds[-REPS:], higher=False)


SIZE = 300_000


def colliding_ids() -> Keys:
    """Ids whose codes share their top 40 bits if the hash of a table has no secret."""
    codes = (np.uint64(0x123456789A) << np.uint64(24)) + np.random.default_rng(1).permutation(
        1 << 24
    )[:SIZE].astype(np.uint64)
    with np.errstate(over="ignore"):
        x = codes * np.uint64(pow(0x1C69B3F74AC4AE35, -1, 1 << 64))
        x ^= (x >> np.uint64(27)) ^ (x >> np.uint64(54))
        x *= np.uint64(pow(0x3C79AC492BA7B653, -1, 1 << 64))
        return (x ^ (x >> np.uint64(32))).view(np.int64)


def bench_ids() -> None:
    warm_up(adagrad(16))
    random = keys_of(np.arange(SIZE))
    source = table_of(adagrad(16))
    source.assign(random, np.ones((SIZE, 16), np.float32))
    runs = np.random.default_rng(2).integers(0, 1 << 40, SIZE // 1000) * 1000
    kinds = {
        "random": random,
        "sorted": np.arange(SIZE),
        "clustered": (runs[:, None] + np.arange(1000)).reshape(-1),
        "dump": source.dump(limit=SIZE).ids,
        "adversarial": colliding_ids(),
    }
    values, rows = np.ones((BATCH, 16), np.float32), np.ones((BATCH, 32), np.float32)
    times, out = np.ones(BATCH, np.int64), np.empty((BATCH, 16), np.float32)

    def seconds(call: Callable[[Keys], object], keys: Keys) -> float:
        start = time.perf_counter()
        for begin in range(0, SIZE, BATCH):
            call(keys[begin : begin + BATCH])
        return time.perf_counter() - start

    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(REPS + 1):  # in turns, so that a busy machine slows all of them down
        for kind, keys in kinds.items():
            inserted, loaded = table_of(adagrad(16)), table_of(adagrad(16))
            for what, call in (
                ("insert", lambda part: inserted.assign(part, values[: part.size])),  # noqa: B023
                ("load", lambda part: loaded.load(part, rows[: part.size], times[: part.size])),  # noqa: B023
                ("lookup", lambda part: loaded.lookup(part, out[: part.size])),  # noqa: B023
            ):
                taken.setdefault((what, kind), []).append(seconds(call, keys))
            assert len(inserted) == len(loaded) == SIZE
    for (what, kind), values_s in taken.items():
        report(f"{what}_{kind}_ids", "s", values_s[1:], higher=False)
        ratio = min(values_s[1:]) / min(taken[what, "random"][1:])
        report(f"{what}_{kind}_ids_ratio", "x of random ids", [ratio], higher=False)


BENCHES = {
    "w1": bench_w1,
    "shapes": bench_shapes,
    "growth": bench_growth,
    "curve": bench_curve,
    "threads": bench_threads,
    "ids": bench_ids,
    "ready": bench_ready,
}


def main(names: Sequence[str]) -> None:
    if len(names) == 1:
        BENCHES[names[0]]()
        return
    for name in (
        names or BENCHES
    ):  # each in a process of its own, so that none measures what another left behind
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
