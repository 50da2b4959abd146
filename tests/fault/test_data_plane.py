"""What a client sees when parameter servers die under it."""

import threading

import numpy as np

from megalith.client import Segment, Sgd, TableConfig, Zeros, connect
from megalith.errors import OutcomeLost
from support.processes import Processes
from support.waiting import wait_until

IDS = np.arange(200)


class Pusher(threading.Thread):
    """Pushes ones to every id, a pull beside it, until told to stop; counts what was acknowledged.

    A push that was on its way to the killed server is said to be lost there, and is not repeated.
    """

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster = cluster
        self.acknowledged, self.lost, self.failure = 0, 0, None
        self.stopping = threading.Event()

    def run(self):
        try:
            while not self.stopping.is_set():
                pulled = self.cluster.begin_pull({"t": IDS})
                try:
                    self.cluster.begin_push(
                        {"t": (IDS, np.ones((IDS.size, 1), np.float32))}
                    ).result()
                    self.acknowledged += 1
                except OutcomeLost:
                    self.lost += 1
                pulled.result()
        except Exception as error:
            self.failure = error

    def waits_for(self, more):
        start = self.acknowledged
        wait_until(
            lambda: self.failure or self.acknowledged >= start + more,
            what=f"{more} pushes after {start}",
        )
        assert self.failure is None


def test_clients_go_on_by_themselves_when_a_killed_ps_comes_back_on_another_port(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start_controller(num_ps=2, num_workers=0)
        members = [processes.start_member("ps", index) for index in range(2)]
        job = processes.job()
        with connect(model_dir=str(processes.model_dir)) as cluster:
            cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
            owners = job.routing().owner_of(IDS)
            pusher = Pusher(cluster)
            pusher.start()
            pusher.waits_for(20)
            saved_from = pusher.acknowledged
            job.save()  # brings the table back on the replacement
            saved_to = pusher.acknowledged
            before = job.status().members[1].address

            members[1].kill()
            wait_until(lambda: job.status().phase == "forming")
            stalled_at = pusher.acknowledged
            processes.start_member("ps", 1)
            pusher.waits_for(20)
            assert job.status().members[1].address != before
            pusher.stopping.set()
            pusher.join(60)

            assert pusher.failure is None
            rows = cluster.pull({"t": IDS}).rows["t"][:, 0]
            # At most the push that was on its way when the server died has an unknown outcome
            # there, and it is counted.
            assert pusher.lost == cluster.writes_unknown <= 1
            # On the server that lived every push counts, once; the other one lost some of those
            # between its checkpoint and its death, and none after.
            np.testing.assert_array_equal(rows[owners == 0], -(pusher.acknowledged + pusher.lost))
            revived = -rows[owners == 1]
            # The save went on beside the pushes, so rows may differ by those that were applied
            # meanwhile.
            assert np.ptp(revived) <= saved_to + 1 - saved_from
            assert pusher.acknowledged - (stalled_at + 1 - saved_from) <= revived.min()
            assert revived.max() <= pusher.acknowledged
