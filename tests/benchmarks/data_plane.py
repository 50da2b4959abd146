"""Pull and push through the SDK: 2 ps processes and one client on loopback, one step after the
other.

A step looks at 106,496 ids (4096 examples of 26 slots, Zipf popularity) of which about 39,000 are
distinct, rows of 16 floats, Adagrad. Finding the distinct ids is part of the step here, because it
is part of what a user calls.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from report import report

from megalith.client import Adagrad, Segment, TableConfig, connect
from support.processes import Processes

EXAMPLES, SLOTS, DIM, BATCHES = 4096, 26, 16, 16


def batches():
    rng = np.random.default_rng(0)
    for _ in range(BATCHES):
        ranks = np.minimum(rng.zipf(1.15, (SLOTS, EXAMPLES)), 1_000_000)
        yield (ranks + (np.arange(SLOTS)[:, None] << 48)).ravel()


def main():
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        processes.start_cluster(num_ps=2, num_workers=0)
        with connect(model_dir=str(processes.model_dir)) as cluster:
            cluster.create_tables(TableConfig("rows", (Segment(DIM, optimizer=Adagrad(0.01)),)))
            ids = list(batches())
            gradients = np.ones((EXAMPLES * SLOTS, DIM), np.float32)
            conditions = {
                "ps": 2,
                "clients": 1,
                "ids": EXAMPLES * SLOTS,
                "distinct": int(np.unique(ids[0]).size),
                "dim": DIM,
            }
            for _ in range(2):  # the first round fills the tables
                seconds = {"pull": 0.0, "push": 0.0}
                for batch in ids:
                    start = time.perf_counter()
                    cluster.pull({"rows": batch})
                    middle = time.perf_counter()
                    cluster.push({"rows": (batch, gradients)})
                    seconds["pull"] += middle - start
                    seconds["push"] += time.perf_counter() - middle
            for name, total in seconds.items():
                report(f"{name}_ids", EXAMPLES * SLOTS * BATCHES / total, "ids/s", **conditions)
            report("steps", BATCHES / sum(seconds.values()), "steps/s", **conditions)


if __name__ == "__main__":
    main()
