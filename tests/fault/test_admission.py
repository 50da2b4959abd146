"""What a parameter server had counted, after it was killed."""

import numpy as np

from megalith.client import AdmissionConfig, FilterKind, Segment, Sgd, TableConfig, Zeros, connect
from support.processes import Processes
from support.waiting import wait_until


def test_ids_go_on_counting_where_the_checkpoint_left_them(tmp_path):
    """Of three pushes that are dropped two precede the save and one follows the restart.

    The one between is lost.
    """
    rule = AdmissionConfig(kind=FilterKind.SLIDING, default_threshold=3, capacity=10_000)
    table = TableConfig(
        "t", (Segment(1, Zeros(), Sgd(1.0)),), admission=rule, touched_capacity=1000
    )
    ids, gradients = np.arange(1, 400) * 7919, -np.ones((399, 1), np.float32)
    with Processes(tmp_path) as processes:
        processes.start_controller(num_ps=2, num_workers=0, stay_up="true")
        members = [processes.start_member("ps", index) for index in range(2)]
        with connect(model_dir=str(processes.model_dir)) as cluster:
            job = processes.job()
            cluster.create_tables(table)
            cluster.push({"t": (ids, gradients)})
            cluster.push({"t": (ids, gradients)})
            saved = job.save()
            cluster.push({"t": (ids, gradients)})
            for member in members:
                member.kill()
            wait_until(lambda: job.status().phase == "forming")
            for index in range(2):
                processes.start_member("ps", index)
            wait_until(lambda: job.status().phase == "running")
            restored = [member.restored.path for member in job.status().members]
            assert restored == [saved.path, saved.path]
            for expected in (0, 1, 2):
                cluster.push({"t": (ids, gradients)})
                np.testing.assert_array_equal(
                    cluster.pull({"t": ids}).rows["t"], np.full((399, 1), expected)
                )
