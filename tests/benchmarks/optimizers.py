"""Rows per second of every optimizer kernel on one thread, and of what an update does besides: JSON
lines.

    python tests/benchmarks/optimizers.py [--rows 2000000] [--dim 16] [--reps 5] [--only adam,ftrl]

Rows are random and distinct within a batch, many times larger than the caches together, and padded
to whole cache lines. The best of the repetitions counts: on a shared machine the others measure the
neighbours.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator

import numba
import numpy as np
from numpy.typing import NDArray

from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.segments.compressor import RowCodec
from megalith.engine.segments.initializer import row_initializer
from megalith.engine.segments.optimizer import row_optimizer
from megalith.engine.table.touched import TouchedIdSet
from megalith.schema import optimizers as o
from megalith.schema.admission import AdmissionConfig
from megalith.schema.compressors import FixedR8, Fp16, Fp32, OneBit
from megalith.schema.initializers import RandomUniform

BATCH = 65_536
LINE_FLOATS = 16

OPTIMIZERS: dict[str, o.Optimizer] = {
    "sgd": o.Sgd(),
    "adagrad": o.Adagrad(),
    "dynamic_wd_adagrad": o.DynamicWdAdagrad(weight_decay_factor=0.01),
    "dynamic_wd_adagrad, dynamic": o.DynamicWdAdagrad(
        weight_decay_factor=0.01, enable_dynamic_wd=True
    ),
    "ftrl": o.Ftrl(beta=1.0, l1_regularization_strength=0.01),
    "group_ftrl": o.GroupFtrl(l1_regularization_strength=0.01),
    "group_adagrad": o.GroupAdagrad(l2_regularization_strength=0.01),
    "adadelta": o.Adadelta(),
    "adam": o.Adam(),
    "amsgrad": o.Amsgrad(),
    "momentum": o.Momentum(),
    "moving_average": o.MovingAverage(),
    "batch_softmax": o.BatchSoftmax(),
    "rmsprop": o.Rmsprop(),
    "rmspropv2": o.RmspropV2(),
    "dc(adagrad)": o.Dc(o.Adagrad(), 0.1),
    "stochastic_rounding_float16(adagrad)": o.StochasticRoundingFloat16(o.Adagrad()),
}

Pass = Callable[[], int]  # does some work, returns how many rows or keys it was


def optimizer_pass(
    config: o.Optimizer, rows: int, dim: int, touched: TouchedIdSet | None = None
) -> Pass:
    """Sixteen batches of updates over a table of `rows`; with a touched-key set, tracked."""
    rng = np.random.default_rng(0)
    optimizer = row_optimizer(config, dim)
    width = -(-(dim + optimizer.state_width) // LINE_FLOATS) * LINE_FLOATS
    values = np.full(rows * width, 0.1, np.float32)
    values.reshape(rows, width)[:, dim : dim + optimizer.state_width] = optimizer.initial_state
    columns = 2 * dim if optimizer.takes_pulled else dim
    grads = rng.standard_normal((BATCH, columns)).astype(np.float32)
    picked = [rng.choice(rows, BATCH, replace=False) for _ in range(16)]
    keys = rng.integers(-(2**63), 2**63 - 1, rows)

    def run() -> int:
        for step, batch in enumerate(picked):
            own = grads.copy() if optimizer.takes_pulled else grads  # compensation overwrites them
            optimizer.apply(values, batch * width, 0, dim, own, 0, dim, np.float32(0.01), step)
            if touched is not None:
                touched.add(keys[batch])
        return BATCH * len(picked)

    return run


def touched_pass(keys: NDArray[np.int64]) -> Pass:
    touched = TouchedIdSet()
    batches = np.array_split(keys, len(keys) // BATCH)
    return lambda: sum(len(batch) for batch in batches if touched.add(batch) >= 0)


def filter_pass(keys: NDArray[np.int64]) -> Pass:
    """New ids in a filter whose ring has turned: each is looked for in every block."""
    counting = CountingFilter.sliding(
        AdmissionConfig(default_threshold=3).thresholds(), len(keys) // 2
    )
    ones = np.ones_like(keys)
    return lambda: len(counting.admit(keys, ones))


def initializer_pass(rows: int, dim: int) -> Pass:
    values, keys = np.empty(rows * dim, np.float32), np.arange(rows)
    initializer = row_initializer(RandomUniform(), dim)

    def run() -> int:
        initializer.fill(values, keys * dim, 0, dim, keys, 0, initializer.params)
        return rows

    return run


def decode_pass(codec: RowCodec, rows: int) -> Pass:
    rng = np.random.default_rng(0)
    stored = codec.encode(rng.standard_normal((rows, codec.dim)).astype(np.float32)).reshape(-1)
    batches = np.array_split(rng.permutation(rows) * codec.row_bytes, rows // BATCH)
    out = np.empty((2 * BATCH, codec.dim), np.float32)

    def run() -> int:
        for starts in batches:
            codec.decode_from(stored, starts, out[: len(starts)])
        return rows

    return run


def cases(rows: int, dim: int) -> Iterator[tuple[str, Callable[[], Pass]]]:
    """Name and builder of each case.

    Built one at a time, because each takes a table's worth of memory.
    """
    for name, config in OPTIMIZERS.items():
        width = 1 if name == "batch_softmax" else dim
        yield name, lambda config=config, width=width: optimizer_pass(config, rows, width)
    yield (
        "adagrad, touched keys tracked",
        lambda: optimizer_pass(o.Adagrad(), rows, dim, TouchedIdSet()),
    )
    keys = np.random.default_rng(1).integers(0, 2**63 - 1, 64 * BATCH)
    yield "touched keys, 4 M random", lambda: touched_pass(keys)
    yield "sliding filter, 4 M new ids", lambda: filter_pass(keys)
    yield "random_uniform", lambda: initializer_pass(rows, dim)
    for compressor in (Fp32(), Fp16(), FixedR8(), OneBit()):
        codec = RowCodec([(compressor, dim)])
        yield f"decode {compressor.name}", lambda codec=codec: decode_pass(codec, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--only", default="", help="comma-separated parts of case names")
    options = parser.parse_args()
    wanted = [part for part in options.only.split(",") if part]
    for name, build in cases(options.rows, options.dim):
        if wanted and not any(part in name for part in wanted):
            continue
        work = build()
        work()  # compiles, and touches the memory
        rates, cpu_rates = [], []
        for _ in range(options.reps):
            start, cpu_start = time.perf_counter(), time.thread_time()
            count = work()
            rates.append(count / (time.perf_counter() - start) / 1e6)
            cpu_rates.append(count / (time.thread_time() - cpu_start) / 1e6)
        conditions = {
            "rows": options.rows,
            "dim": 1 if name == "batch_softmax" else options.dim,
            "batch": BATCH,
            "threads": 1,
            "reps": options.reps,
            "lowest": round(min(rates), 2),
            "per_cpu_second": round(
                max(cpu_rates), 2
            ),  # what is left of it when the thread waits for a core
            "load1": round(os.getloadavg()[0], 2),
            "cpu": platform.machine(),
            "numba": numba.__version__,
        }
        line = {
            "case": name,
            "value": round(max(rates), 2),
            "unit": "M rows/s",
            "conditions": conditions,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
