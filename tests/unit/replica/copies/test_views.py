"""A reply is of one model, and says of which, whatever is served a moment later."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.errors import NotReady
from megalith.protos import replica_pb2 as pb
from megalith.replica.copies.cluster_copy import ClusterCopy
from megalith.replica.copies.followed_servers import FollowedServers, HeldShare
from megalith.replica.copies.model import ServedModel
from megalith.replica.predicting.prediction import Predictor
from megalith.replica.predicting.served_task import ServedExamples
from megalith.replica.serving.lookups import Lookups
from megalith.schema import Segment, TableConfig
from megalith.wire.routing import Routing, share_of_buckets

CHECKPOINTS = {"model.ckpt-1": 1, "model.ckpt-2": 2}
TABLES = ("t", "u")
ALL = HeldShare(0, 0, share_of_buckets(0, 0))


def model_of(value):
    """Every row of every table, and the variable, are that value."""
    model = ServedModel(0)
    for name in TABLES:
        table = model.begin_table(TableConfig(name, (Segment(1),)))
        rows = np.full((10, 1), value, np.float32).view(np.uint8)
        table.upsert_compressed(np.arange(10), rows, np.zeros(10, np.int64))

    model.set_variables({"v": np.full(1, value, np.float32)})
    model.is_from_checkpoint()
    return model


class Checkpoints:
    def newest(self):
        return None

    def named(self, name):
        value = CHECKPOINTS[name]
        return SimpleNamespace(
            model=model_of(value), name=name, save_id="", saved_at_s=0.0, newest_data_s=0
        )

    def stop(self):
        pass


class Controller:
    """Names the run that there is."""

    run_id = "first"

    def routing_now(self, timeout_s, run_id):
        return Routing(1, ("a:1", "b:1"), np.zeros(1024, np.uint16), self.run_id)


class Servers:
    """Follows ps which catch up when the test says so."""

    def __init__(self):
        self.all = []

    def follow(self, routing, model, save_id):
        if self.all and self.all[0].process.run_id == routing.run_id:
            return False

        self.all = []
        for index in range(len(routing.addresses)):
            copy = SimpleNamespace(
                index=index, caught_up_s=None, version=0, newest_data_s=0, is_mixed=False
            )
            process = SimpleNamespace(run_id=routing.run_id)
            self.all.append(SimpleNamespace(copy=copy, process=process, complaint=""))

        return True

    def catch_up(self, index, now_s=0.0):
        self.all[index].copy.caught_up_s = now_s
        self.all[index].copy.version = 5

    def stop(self):
        pass

    def forget(self):
        self.all = []


class Task:
    """Predicts a logit from a row of each table and the variable: their common value, or NaN."""

    tables = tuple(TableConfig(name, (Segment(1),)) for name in TABLES)
    variables = (SimpleNamespace(name="v", initial=np.zeros(1, np.float32)),)
    served_features = ()
    served_dense = ()

    def served_logits(self, examples, read):
        parts = [read({name: np.arange(1)}, ())[0][name][0, 0] for name in TABLES]
        parts.append(read({}, ("v",))[1]["v"][0])
        is_equal = len(set(parts)) == 1
        return np.array([parts[0] if is_equal else np.nan], np.float32)


def copy_of(servers=None, controller=None, clock=lambda: 0.0):
    if servers is None:
        servers = FollowedServers("replica-0", ALL, lambda _: None, 1 << 20)
    return ClusterCopy(
        controller or Controller(),
        ALL,
        servers,
        Checkpoints(),
        admit=lambda: None,
        clock=clock,
        wall_clock=lambda: 100.0,
    )


def looked_up(copy):
    """The values of a row of each table, and what the reply says that they are of."""
    request = pb.LookupRequest(tables=[pb.ServedIds(table=name) for name in TABLES])
    ids = [np.arange(1).tobytes() for _ in TABLES]
    rows, fresh = Lookups(copy).look_up(request, ids, lambda _: None)
    return {float(matrix[0, 0]) for matrix in rows}, fresh.checkpoint


def predicted(copy):
    predictor = Predictor(copy, SimpleNamespace(task=Task))
    found = predictor.predict(ServedExamples({}, None, {}), 0.0)
    value = np.log(found.values[0] / (1 - found.values[0]))
    return {float(np.round(value))}, found.freshness.checkpoint


@pytest.mark.parametrize("read", [looked_up, predicted])
def test_replies_during_rollbacks_are_of_the_checkpoint_that_they_name(read):
    copy = copy_of()
    copy.roll_back("model.ckpt-1")
    stopping = threading.Event()

    def go_back_and_forth():
        while not stopping.is_set():
            for name in CHECKPOINTS:
                copy.roll_back(name)

    thread = threading.Thread(target=go_back_and_forth)
    thread.start()
    seen = set()
    try:
        for _ in range(2000):
            values, checkpoint = read(copy)
            assert values == {CHECKPOINTS[checkpoint]}
            seen.add(checkpoint)
    finally:
        stopping.set()
        thread.join()

    assert seen == set(CHECKPOINTS)


def test_a_prediction_that_waits_for_its_turn_is_of_the_model_that_it_names():
    copy = copy_of()
    copy.roll_back("model.ckpt-1")

    class SlowTask(Task):
        def served_logits(self, examples, read):
            copy.roll_back("model.ckpt-2")  # while it computes
            return super().served_logits(examples, read)

    predictor = Predictor(copy, SimpleNamespace(task=SlowTask))
    found = predictor.predict(ServedExamples({}, None, {}), 0.0)
    assert found.freshness.checkpoint == "model.ckpt-1"
    assert found.values[0] == np.float32(1 / (1 + np.exp(-1.0)))


def test_a_snapshot_that_begins_while_streams_are_ended_is_let_go_on_and_not_pinned():
    class InTheLastMoment(Servers):
        follows = 0

        def follow(self, *arguments):
            self.follows += 1
            return super().follow(*arguments)

        def stop(self):
            self.all[1].copy.is_mixed = True

    servers = InTheLastMoment()
    copy = copy_of(servers)
    copy._look()
    servers.catch_up(0)
    servers.catch_up(1)
    with pytest.raises(NotReady, match=r"^ps-1 has not sent all rows yet"):
        copy.pin()
    assert servers.follows == 2
    assert not copy.freshness().is_pinned


def test_a_table_that_another_ps_has_begun_anew_is_not_pinned():
    """Between two snapshots no rows are mixed, but the table would answer nobody until unpin."""
    servers = Servers()
    copy = copy_of(servers)
    copy._look()
    servers.catch_up(0)
    servers.catch_up(1)
    copy.model.reshape(2)
    table = copy.model.begin_table(TableConfig("t", (Segment(1),)))
    copy.model.end_snapshot(table, 0)
    with pytest.raises(NotReady, match=r"^ps-1 has not sent all rows yet"):
        copy.pin()
    copy.model.end_snapshot(table, 1)
    copy.pin()
    assert copy.freshness().is_pinned


def test_an_answer_names_the_old_run_until_all_ps_of_the_new_one_have_sent_everything():
    """There are two of them before and after, so that all tables stay whole."""
    servers = Servers()
    controller = Controller()
    now_s = [0.0]
    copy = copy_of(servers, controller, lambda: now_s[0])
    copy._look()
    assert not copy.is_ready
    servers.catch_up(0)
    servers.catch_up(1)
    assert copy.freshness().run_id == "first"
    assert copy.freshness().versions == (5, 5)

    controller.run_id = "second"
    now_s[0] = 3.0
    copy._look()
    servers.catch_up(0, 3.0)
    fresh = copy.freshness()
    assert (fresh.run_id, fresh.versions, fresh.staleness_s) == ("first", (), 3.0)

    controller.run_id = "third"  # before the second has sent everything
    copy._look()
    servers.catch_up(1, 3.0)
    assert copy.freshness().run_id == "first"
    servers.catch_up(0, 3.0)
    fresh = copy.freshness()
    assert (fresh.run_id, fresh.versions, fresh.staleness_s) == ("third", (5, 5), 0.0)
