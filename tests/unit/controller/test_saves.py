import threading

import pytest

from megalith.controller.saves import Saver
from megalith.runtime import manifest
from megalith.runtime.manifest import ShardFile
from megalith.wire.errors import LimitExceeded, MegalithError, SaveFailed
from support.waiting import wait_until


class FakeCoordinator:
    """Two ps with sessions 1 and 2; `on_order` decides what they answer."""

    global_step = 12

    def __init__(self):
        self.alive = {1, 2}
        self.on_order = lambda order: None
        self.orders = []

    def order_save(self, order):
        self.orders.append(order)
        self.on_order(order)
        return [1, 2]

    def is_alive(self, session):
        return session in self.alive


def file(name, rows=3):
    return ShardFile(name, "table", "t", rows, 10, "00")


@pytest.fixture
def cluster():
    return FakeCoordinator()


@pytest.fixture
def saver(cluster, tmp_path):
    return Saver(cluster, tmp_path, timeout_s=60.0, clock=lambda: 99.5)


def answer_both(saver, order):
    for session in (1, 2):
        name = f"t-{session}-{order.save_id}"
        (manifest.Path(order.directory) / name).touch()
        saver.answer(session, order.save_id, [file(name)], "")


def test_a_save_lists_every_shard_and_becomes_the_newest(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    saved = saver.save()
    assert (saved.path, saved.step, saved.rows) == (tmp_path / "model.ckpt-12", 12, 6)
    assert manifest.read(saved.path).num_ps == 2
    assert manifest.latest(tmp_path) == saved.path
    assert (tmp_path / "checkpoint").read_text() == (
        'model_checkpoint_path: "model.ckpt-12"\n'
        'all_model_checkpoint_paths: "model.ckpt-12"\n'
        "all_model_checkpoint_timestamps: 99.5\n"
        "last_preserved_timestamp: 99.5\n"
    )


def test_golden_a_save_that_holds_training_writes_nothing_before_the_barrier_and_lets_go_of_it_whatever_happens(
    saver, cluster
):
    events = []
    cluster.hold = lambda action, reason, timeout_s: (events.append(action), lambda: events.append("let go"))[1]
    cluster.on_order = lambda order: (events.append("write"), answer_both(saver, order))
    saver.save(hold=True)
    cluster.on_order = lambda order: (events.append("fail"), saver.answer(1, order.save_id, [], "disk full"))
    cluster.alive = {1}
    with pytest.raises(MegalithError):
        saver.save(hold=True)
    assert events == ["Save", "write", "let go", "Save", "fail", "let go"]


def test_older_checkpoints_stay_in_the_list(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    cluster.global_step = 20
    saver.save()
    assert manifest.latest(tmp_path).name == "model.ckpt-20"
    assert 'all_model_checkpoint_paths: "model.ckpt-12"' in (tmp_path / "checkpoint").read_text()


def test_a_save_that_one_ps_cannot_finish_does_not_exist(saver, cluster, tmp_path):
    def answer(order):
        name = f"t-1-{order.save_id}"
        (manifest.Path(order.directory) / name).touch()
        saver.answer(1, order.save_id, [file(name)], "")
        saver.answer(2, order.save_id, [], "ps 1: disk full")

    cluster.on_order = answer
    with pytest.raises(SaveFailed, match="disk full"):
        saver.save()
    assert manifest.latest(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_ps_lost_during_a_save_fails_it_at_once(saver, cluster):
    cluster.on_order = lambda order: cluster.alive.discard(2)
    with pytest.raises(SaveFailed, match="a ps was lost"):
        saver.save()


def test_a_failed_save_of_the_same_step_keeps_the_good_one(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    good = saver.save()
    cluster.on_order = lambda order: [saver.answer(session, order.save_id, [], "no") for session in (1, 2)]
    with pytest.raises(SaveFailed):
        saver.save()
    assert manifest.latest(tmp_path) == good.path
    assert all((good.path / item.name).exists() for item in manifest.read(good.path).files)


def test_a_directory_that_cannot_be_made_is_a_failed_save(saver, tmp_path):
    (tmp_path / "model.ckpt-12").touch()
    with pytest.raises(SaveFailed, match="cannot write the checkpoint"):
        saver.save()


def test_too_many_saves_at_once_are_refused(saver, cluster):
    release = threading.Event()
    cluster.on_order = lambda order: (release.wait(30), answer_both(saver, order))
    threads = [threading.Thread(target=saver.save) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: cluster.orders)
    wait_until(lambda: saver._queue._value == 0)
    with pytest.raises(LimitExceeded, match="4 saves are under way"):
        saver.save()
    release.set()
    for thread in threads:
        thread.join(30)
    assert saver.save().rows == 6


def test_an_answer_to_an_older_save_is_ignored(saver, cluster):
    cluster.on_order = lambda order: (
        saver.answer(1, "old", [], "stale error"),
        answer_both(saver, order),
    )
    assert saver.save().rows == 6


def test_saves_take_turns(saver, cluster):
    release, running = threading.Event(), []

    def slow(order):
        running.append(order.save_id)
        assert len(running) == 1
        release.wait(30)
        answer_both(saver, order)
        running.clear()

    cluster.on_order = slow
    threads = [threading.Thread(target=saver.save) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: running)
    release.set()
    for thread in threads:
        thread.join(30)
    assert len(cluster.orders) == 3
    assert len({order.save_id for order in cluster.orders}) == 3


def test_a_save_may_go_to_another_directory(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    saved = saver.save(str(tmp_path / "elsewhere"))
    assert manifest.latest(tmp_path / "elsewhere") == saved.path
    assert manifest.latest(tmp_path) is None
