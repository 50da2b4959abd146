"""A replica that is stopped for longer than its connections live."""

import signal
import threading
import time

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, connect
from megalith.errors import PeerUnreachable, TooStale
from support.processes import Processes
from support.replicas import ReplicaReader, assert_serves
from support.waiting import wait_until

# Longer than the 20 + 10 s after which the replica gives up a connection that is silent. Whether it
# does when it goes on depends on what it was about to do.
PAUSE_S = 60
ALLOWED_S = 5.0
IDS = np.arange(5000)
CALL_S = 120.0  # of a push, however long its server is away


class Counting:
    """Adds 1 to every row again and again, and notes when each push was acknowledged."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counting", daemon=True)
        self.acknowledged_s = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stopping.set()
        self._thread.join(CALL_S)
        assert not self._thread.is_alive()

    def _run(self):
        gradients = np.full((IDS.size, 1), -1, np.float32)
        while not self._stopping.wait(0.2):
            self._cluster.push({"t": (IDS, gradients)})
            self.acknowledged_s.append(time.monotonic())

    def before(self, moment_s):
        """How many pushes were acknowledged before then."""
        return sum(each < moment_s for each in list(self.acknowledged_s))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_replica_that_was_paused_for_a_minute_is_never_silently_stale_and_ends_equal(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start_controller(num_ps=2, num_workers=0)
        all_ps = [processes.start_member("ps", index, delta_every_s=0.05) for index in range(2)]
        replica = processes.start_member("replica", 0)
        with connect(
            model_dir=str(processes.model_dir), timeout_s=CALL_S, connect_timeout_s=120
        ) as cluster:
            cluster.create_tables(TableConfig("t", (Segment(1, optimizer=Sgd(1.0)),)))
            with Counting(cluster) as counting:
                reader = ReplicaReader(replica.reported("address"))
                reader.wait_ready()
                reader.wait_for_a_version()
                before = reader.status()

                replica.pause()
                paused_s = time.monotonic()
                counted = len(counting.acknowledged_s)
                wait_until(lambda: time.monotonic() > paused_s + PAUSE_S, PAUSE_S + 30)
                assert len(counting.acknowledged_s) > counted + PAUSE_S  # it delayed nobody
                replica.signal(signal.SIGCONT)
                refused = answers_of(reader, counting)

            print(f"refused {refused} times before the first answer")
            reader.wait_for_a_version()
            assert_serves(reader, cluster, "t", IDS)
            total = len(counting.acknowledged_s)
            assert set(reader.lookup("t", IDS).ravel()) == {float(total)}
            after = reader.status()
            for old, new in zip(before.ps, after.ps, strict=True):
                assert new.snapshots == old.snapshots
                # Of hundreds of pushes, each row was sent a few times
                assert new.rows_applied - old.rows_applied < IDS.size * total / 5
        assert [ps.poll() for ps in all_ps] == [None, None]


def answers_of(reader, counting):
    """Ask until ten answers came, each of which has what was acknowledged `ALLOWED_S` before.

    Returns how often the replica said that it is staler.
    """
    refused = 0
    answers = 0
    while answers < 10:
        least = counting.before(time.monotonic() - ALLOWED_S)
        try:
            reply = reader.lookup_once("t", IDS, max_staleness_s=ALLOWED_S)
        except (TooStale, PeerUnreachable):
            refused += 1
            continue

        rows = np.frombuffer(reply.rows[0], np.float32)
        assert rows.min() >= least
        answers += 1

    return refused
