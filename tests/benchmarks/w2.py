"""Workload W2: 2 servers, 1 client, batches of 4096 examples with 26 ids each, rows of 16 floats,
Adagrad.

Ids and the timed loop come from the harness of the peers when this runs in its folder (its
`common.py`), so that all figures of one run are made alike; else from the same definitions here.
"""

import importlib.util
import os
import time
from pathlib import Path

import numpy as np
from report import report

SLOTS, EXAMPLES, DIM = 26, 4096, 16
RATE, EPSILON, ACCUMULATOR = 0.05, 1e-8, 0.1
ROWS = int(os.environ.get("PEERS_ROWS", 10_000_000))
BATCHES = int(os.environ.get("PEERS_W2_BATCHES", 64))
REPS = int(os.environ.get("PEERS_REPS", 5))
_EXPONENT = 1.15  # of Zipf's law in each slot: about 37 % of the ids of a batch are distinct
_SPREAD = 7_368_787  # a prime: hot ranks lie all over the rows


def harness():
    """The peers' `common` module, if this process runs in their folder."""
    path = Path(os.environ.get("PEERS_BENCH", os.getcwd())) / "common.py"
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("common", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys_of(rows):
    """The id of each row number: a bijection that scatters them."""
    with np.errstate(over="ignore"):
        z = np.asarray(rows).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).view(np.int64)


def batches():
    """Row numbers [examples, slots]; each slot has an equal share of the rows."""
    common = harness()
    if common is not None:
        return common.w2_batches()
    rng, share, power = np.random.default_rng(2), ROWS // SLOTS, 1.0 - _EXPONENT
    base = np.arange(SLOTS) * share
    out = []
    for _ in range(BATCHES):
        uniform = rng.random((EXAMPLES, SLOTS))
        ranks = (((share + 1.0) ** power - 1.0) * uniform + 1.0) ** (1.0 / power)
        out.append(base + np.minimum(ranks.astype(np.int64) - 1, share - 1) * _SPREAD % share)
    return out


def distinct_batches():
    """The distinct ids of each batch, in a random order."""
    return [np.random.default_rng(3).permutation(keys_of(np.unique(batch))) for batch in batches()]


def report_best(case, unit, values, higher=True, **conditions):
    """One line for several measurements of the same: the best, and how far they lie apart."""
    values = [float(value) for value in values]
    report(
        case,
        max(values) if higher else min(values),
        unit,
        lo=round(min(values), 4),
        hi=round(max(values), 4),
        reps=len(values),
        load1=round(os.getloadavg()[0], 2),
        **conditions,
    )


def run_steps(peer, pull, push, ids, **conditions):
    """Pull, then push, one step after the other; by the harness's own loop if it is there."""
    common = harness()
    if common is not None:
        common.run_steps("w2", peer, pull, push, ids, EXAMPLES * SLOTS, reps=REPS, **conditions)
        return
    for batch in ids[:4]:
        push(batch, pull(batch))
    rates, pulls, pushes = [], [], []
    for _ in range(REPS):
        began = time.perf_counter()
        for batch in ids:
            start = time.perf_counter()
            rows = pull(batch)
            middle = time.perf_counter()
            push(batch, rows)
            pulls.append(1e3 * (middle - start))
            pushes.append(1e3 * (time.perf_counter() - middle))
        rates.append(len(ids) / (time.perf_counter() - began))
    report_best(f"w2_{peer}_steps", "steps/s", rates, **conditions)
    report_best(f"w2_{peer}_pull_p50", "ms", [np.percentile(pulls, 50)], higher=False, **conditions)
    report_best(f"w2_{peer}_pull_p99", "ms", [np.percentile(pulls, 99)], higher=False, **conditions)
    report_best(
        f"w2_{peer}_push_p50", "ms", [np.percentile(pushes, 50)], higher=False, **conditions
    )
