"""Dense variables through the SDK: 2 ps processes and one client on loopback. Reads and pushes of
gradients, in MB/s.

The large variable (16 MB) is split over both servers; small ones go along with every step of a
model.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from report import report

from megalith.client import Adagrad, Adam, Adamom, Sgd, VariableConfig, connect
from support.processes import Processes

ROWS, COLUMNS, REPEATS = 4096, 1024, 20
SMALL = 32


def best(call):
    """Seconds of the quickest of the repeats: on a shared machine the others measure the
    neighbours."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main():
    gradient = np.ones((ROWS, COLUMNS), np.float32)
    megabytes = gradient.nbytes / 1e6
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        processes.start_cluster(num_ps=2, num_workers=0)
        with connect(model_dir=str(processes.model_dir)) as cluster:
            conditions = {"ps": 2, "clients": 1, "megabytes": megabytes}
            for optimizer in (Sgd(0.1), Adagrad(0.1), Adam(0.1), Adamom(0.1)):
                name = optimizer.name
                cluster.create_variables(VariableConfig(name, gradient, optimizer))
                cluster.push(variable_gradients={name: gradient})  # the first one compiles
                seconds = best(lambda name=name: cluster.push(variable_gradients={name: gradient}))
                report("variable_push", megabytes / seconds, "MB/s", optimizer=name, **conditions)
            seconds = best(lambda: cluster.pull(variables=["adam"]))
            report("variable_pull", megabytes / seconds, "MB/s", **conditions)
            names = [f"small-{number}" for number in range(SMALL)]
            cluster.create_variables(
                *(VariableConfig(name, gradient[0, :64], Adam(0.1)) for name in names)
            )
            step = {name: gradient[0, :64] for name in names}
            cluster.push(variable_gradients=step)
            report(
                "small_pull",
                1e3 * best(lambda: cluster.pull(variables=names)),
                "ms",
                ps=2,
                variables=SMALL,
            )
            report(
                "small_push",
                1e3 * best(lambda: cluster.push(variable_gradients=step)),
                "ms",
                ps=2,
                variables=SMALL,
            )


if __name__ == "__main__":
    main()
