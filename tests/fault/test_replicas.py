"""Replicas under kill -9 and pauses: in the end each of them has what the parameter servers have.

A thread writes all the time, also in the moment of a fault, so the outcome of a write may be
unknown. What the servers have in the end is therefore what they say, not the sum of all writes.

`MEGALITH_FAULT_ROUNDS` says how many rounds (default 1), `MEGALITH_FAULT_SEED` which (default 1).
"""

import collections
import os
import random
import signal
import threading

import numpy as np
import pytest

from megalith.client import (
    Adagrad,
    FixedR8,
    Fp16,
    Fp32,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    connect,
)
from megalith.errors import MegalithError, OutcomeUnknown, UnknownTable
from support.processes import Processes
from support.replicas import ReplicaReader, assert_serves
from support.servers import Servers
from support.waiting import wait_until

CALL_S = 300.0  # of a write, however long its server is away
ROUNDS = int(os.environ.get("MEGALITH_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("MEGALITH_FAULT_SEED", "1"))
DIM = 4
NOW = 1_790_000_000
LONG_AGO = NOW - 3 * 86400
NUM_IDS = 20_000  # those from here on get old data only, and expire
# Of the first fault of a round, so that a few rounds meet each kind
FIRST_FAULTS = (
    ("kill", "ps-1"),
    ("kill", "replica-0"),
    ("pause", "ps-0"),
    ("kill", "controller"),
    ("kill", "replica-1"),
    ("pause", "controller"),
    ("kill", "ps-0"),
)
PAUSES_S = (0.1, 1.0, 3.0, 6.0)  # the lease of a ps is 3 s
GAPS_S = (0.0, 0.5, 2.0)  # between two faults, so that they overlap as well
NAMES = ("controller", "ps-0", "ps-1", "replica-0", "replica-1", "replica-2")
# Of the second table: with another one every row is sent anew, rounded otherwise by so much
ROUNDINGS = {Fp32(): 0.0, Fp16(): 4e-3, FixedR8(8.0): 8 / 128}


class ServedJob:
    """Two ps, three replicas and no workers, by name. Replicas start first."""

    def __init__(self, processes):
        self._processes = processes
        self.alive = {name: self._start(name) for name in NAMES if name.startswith("replica")}

    def start_servers(self):
        for name in NAMES:
            if name not in self.alive:
                self.alive[name] = self._start(name)

    def _start(self, name):
        role, _, index = name.partition("-")
        if name == "controller":
            return self._processes.start_controller(
                num_ps=2, num_workers=0, suspect_s=1, increment_every_s=2
            )
        settings = {"delta_every_s": 0.05} if role == "ps" else {"heartbeat_s": 0.2}
        return self._processes.start_member(role, index, **settings)

    def start_again_after_kill(self, name):
        self.alive[name].kill()
        self.alive[name] = self._start(name)

    def pause_for(self, name, seconds):
        self.alive[name].pause()
        threading.Event().wait(seconds)
        self.alive[name].signal(signal.SIGCONT)

    def reader(self, index):
        return ReplicaReader(self.alive[f"replica-{index}"].reported("address"))


def table(name="t"):
    segment = Segment(DIM, RandomUniform(-0.5, 0.5), Adagrad(0.1))
    return TableConfig(name, (segment,), expire_days=1)


def train_an_earlier_run(directory, job):
    """Its table `old` is in the model and in the replicas, and no program creates it later."""
    ids = np.arange(NUM_IDS)
    ones = np.ones((NUM_IDS, DIM), np.float32)
    with Servers(directory, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, delta_every_s=0.05)
        cluster = servers.connect()
        cluster.create_tables(table(), table("old"))
        cluster.push({"t": (ids, ones), "old": (ids, ones)}, req_time_s=NOW)
        cluster.controller.save()
        for index in range(3):
            reader = job.reader(index)
            reader.wait_ready()
            reader.wait_for_a_version()
            assert_serves(reader, cluster, "old", ids)


class Changes:
    """Random changes of tables; the compressor of the second one changes too."""

    def __init__(self, cluster, rng):
        self._cluster = cluster
        self._rng = rng
        self.compressor = Fp32()
        self.is_old_dropped = False
        self.create()

    def create(self):
        """Both tables; a replaced ps may lack them."""
        segment = Segment(DIM, optimizer=Sgd(0.1), compressor=self.compressor)
        self._cluster.create_tables(table(), TableConfig("compressed", (segment,)))

    def make_one(self):
        """A push, an assignment, old data, an expiry, another compressor, or a table that goes."""
        rng = self._rng
        ids = np.unique(rng.integers(0, NUM_IDS, 2000))
        values = rng.normal(size=(ids.size, DIM)).astype(np.float32)
        kinds = ["push", "push", "push", "both", "assign", "old", "expire", "compress", "drop"]
        kind = rng.choice(kinds)
        if kind == "expire":
            self._cluster.expire()
        elif kind == "drop":
            self.drop_old()
        elif kind == "assign":
            self._cluster.assign_rows({"t": (ids, values)}, req_time_s=NOW)
        elif kind == "compress":
            self.compressor = list(ROUNDINGS)[rng.integers(len(ROUNDINGS))]
            self.create()
        elif kind == "both":
            gradients = np.clip(values, -1, 1)
            self._cluster.push({"t": (ids, values), "compressed": (ids, gradients)}, req_time_s=NOW)
        elif kind == "old":
            self._cluster.push({"t": (ids + NUM_IDS, values)}, req_time_s=LONG_AGO)
        else:
            self._cluster.push({"t": (ids, values)}, req_time_s=NOW)

    def drop_old(self):
        """The whole table `old`. A ps that was replaced may have brought it back."""
        if "old" in self._cluster.table_stats():
            self._cluster.drop_table("old")
            self.is_old_dropped = True


class Writer:
    """Makes changes on a thread of its own until it is stopped.

    A write of unknown outcome and a table that a replaced ps lacks are counted by class; any other
    error fails the test.
    """

    _SURVIVED = (OutcomeUnknown, UnknownTable)

    def __init__(self, changes):
        self._changes = changes
        self.made = 0
        self.failed = collections.Counter()
        self.is_writing = False
        self._error = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stopping.set()
        self._thread.join(2 * CALL_S)  # a change, and the tables that it lacked
        assert not self._thread.is_alive()

    def _run(self):
        try:
            while not self._stopping.wait(0.02):
                self._write()
        except BaseException as error:
            self._error = error
            raise

    def _write(self):
        self.is_writing = True
        try:
            self._changes.make_one()
            self.made += 1
        except self._SURVIVED as error:
            self.failed[type(error).__name__] += 1
            if isinstance(error, UnknownTable):
                self._create_again()
        finally:
            self.is_writing = False

    def _create_again(self):
        try:
            self._changes.create()
        except MegalithError as error:
            self.failed[f"create: {type(error).__name__}"] += 1

    def wait_for(self, count):
        """Until so many more changes were made."""
        wanted = self.made + count

        def are_made():
            assert self._error is None, self._error
            return self.made >= wanted

        wait_until(are_made, 300)


def faults_of(number, chance):
    """Three faults: what is done to whom."""
    faults = [FIRST_FAULTS[number % len(FIRST_FAULTS)]]
    for _ in range(2):
        faults.append((chance.choice(["kill", "pause"]), chance.choice(NAMES)))
    return dict.fromkeys(faults)


def inject(job, writer, what, whom, chance):
    """While a write is under way."""
    wait_until(lambda: writer.is_writing)
    if what == "kill":
        print(f"kill {whom}")
        job.start_again_after_kill(whom)
    else:
        seconds = chance.choice(PAUSES_S)
        print(f"pause {whom} for {seconds} s")
        job.pause_for(whom, seconds)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.timeout(600)
def test_replicas_equal_the_servers_after_kills_and_pauses(number, tmp_path):
    chance = random.Random(f"{SEED}-{number}")
    rng = np.random.default_rng([SEED, number])
    with Processes(tmp_path) as processes:
        job = ServedJob(processes)
        train_an_earlier_run(processes.model_dir, job)
        job.start_servers()
        with connect(
            model_dir=str(processes.model_dir), timeout_s=CALL_S, connect_timeout_s=120
        ) as cluster:
            changes = Changes(cluster, rng)
            with Writer(changes) as writer:
                writer.wait_for(5)
                cluster.controller.save()
                for what, whom in faults_of(number, chance):
                    inject(job, writer, what, whom, chance)
                    threading.Event().wait(chance.choice(GAPS_S))
                writer.wait_for(10)  # everybody is back
                job.alive["replica-2"].pause()
                writer.wait_for(5)
                job.alive["replica-2"].signal(signal.SIGCONT)

            print(f"{writer.made} changes, {dict(writer.failed)}, {cluster.writes_unknown} unknown")
            bring_to_rest(cluster, changes)
            tolerances = {"t": 0.0, "compressed": ROUNDINGS[changes.compressor]}
            for index in range(3):
                reader = job.reader(index)
                reader.wait_ready()
                reader.wait_for_a_version()
                assert_equal(reader, cluster, tolerances)


def bring_to_rest(cluster, changes):
    """What is expired is gone, and so is the old table.

    No row is written any more: that would mend a replica that had missed an earlier write.
    """
    changes.create()
    cluster.expire()
    changes.drop_old()
    assert changes.is_old_dropped


def assert_equal(reader, cluster, tolerances):
    """The replica has the same tables, the same ids and the same values, and nothing else."""
    stats = cluster.table_stats()
    assert stats.keys() == tolerances.keys()
    held = {each.config.name: each.rows for each in reader.status().tables}
    assert held == {name: stats[name].rows for name in stats}
    for name, tolerance in tolerances.items():
        assert_serves(reader, cluster, name, np.arange(2 * NUM_IDS), tolerance)

    expired = np.arange(NUM_IDS, 2 * NUM_IDS)
    assert not reader.lookup("t", expired).any()
    with pytest.raises(UnknownTable, match="old"):
        reader.lookup("old", [1])
