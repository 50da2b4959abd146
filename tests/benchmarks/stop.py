"""How long a stop takes until every worker is blocked, and a resume until none is, at 4 workers
under training."""

import os
import statistics
import tempfile
import time
from pathlib import Path

from report import report

from support.processes import Processes
from support.waiting import wait_until

NUM_WORKERS, CYCLES = 4, int(os.environ.get("MEGALITH_TEST_STOP_CYCLES", "30"))


def main():
    with tempfile.TemporaryDirectory() as directory, Processes(Path(directory)) as processes:
        processes.start_cluster(num_ps=2, num_workers=NUM_WORKERS, batch_size=2048)
        job = processes.job(60)
        wait_until(lambda: (processes.model_dir / "controller_server_addr.txt").exists())
        wait_until(lambda: job.training_status() > 50, 120)
        stops, resumes = [], []
        for _ in range(CYCLES):
            stops.append(seconds(job.stop, lambda: job.block_status()[1] == []))
            resumes.append(seconds(job.resume, lambda: job.block_status()[0] == []))
            step = job.training_status()
            wait_until(lambda before=step: job.training_status() > before + 8)
        conditions = {
            "workers": NUM_WORKERS,
            "ps": 2,
            "batch_size": 2048,
            "cycles": CYCLES,
            "task": "clicks",
        }
        for case, taken in (("stop_to_all_blocked", stops), ("resume_to_none_blocked", resumes)):
            report(f"{case}_median", statistics.median(taken) * 1e3, "ms", **conditions)
            report(f"{case}_max", max(taken) * 1e3, "ms", **conditions)


def seconds(act, is_done):
    started = time.perf_counter()
    act()
    wait_until(is_done)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
