"""Dense-only saves beside full ones, with a coordinator that a test scripts."""

import threading
from pathlib import Path

import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.controller.config import ControllerConfig
from megalith.controller.saving import dense_only
from megalith.controller.saving.dense_only import DenseOnlyNews
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.schedule import SaveSchedule
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import InvalidSetting, SaveFailed, ShardLost
from support.waiting import wait_until

CONTENT = b"ten bytes."


class FakeCoordinator:
    """One ps with session 1; `on_order` decides what it answers."""

    global_step = 7
    lacks_rows = False
    is_lost = False
    has_pushes = True

    def __init__(self):
        self.on_order = lambda order: None

    def order_save(self, order):
        self.on_order(order)
        return [1]

    def is_alive(self, session):
        return not self.is_lost

    def wait_for_returning_ps(self):
        pass

    def ask_for_reports(self, timeout_s):
        return []

    def moving_workers(self):
        return ()

    def check_current(self):
        """It is never replaced."""

    def cursors(self):
        return (b"here",)

    def cursors_step(self):
        return self.global_step

    def index_of(self, session):
        return 0

    def has_pushes_beyond(self, pushes):
        self.asked = pushes
        return self.has_pushes


@pytest.fixture
def cluster():
    return FakeCoordinator()


@pytest.fixture
def savers(cluster, tmp_path):
    """The saver of the whole model, and the one of variables alone."""
    full = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=0.0)
    directory = tmp_path / "dense_only"
    dense_only.prepare(directory)
    dense = Saver(cluster, directory, 60.0, retention=Retention(2, 0.0), beside=full)
    cluster.on_order = lambda order: answer(full, order)
    return full, dense


def answer(saver, order, kind="variables", rows=2):
    name = f"variables-{order.save_id}"
    Path(order.directory, name).write_bytes(CONTENT)
    file = ShardFile(name, kind, "", rows, len(CONTENT), "00")
    saver.answer(1, ShardSaved(order.save_id, [file]))


def test_a_dense_only_save_has_a_list_of_its_own_and_names_no_start(savers, tmp_path):
    full, dense = savers
    newest = full.save().path
    saved = dense.save()
    assert saved.path == tmp_path / "dense_only" / "model.ckpt-7"
    content = manifest.read(saved.path)
    assert (content.dense_only, content.cursors) == (True, ())
    assert not manifest.read(newest).dense_only
    assert catalog.latest(tmp_path) == newest
    assert catalog.latest(tmp_path / "dense_only") == saved.path
    assert not (tmp_path / "dense_only" / "ckpt.info-7").exists()


def test_the_same_retention_holds_in_its_own_directory(savers, cluster, tmp_path):
    full, dense = savers
    kept = full.save().path
    for step in (1, 2, 3):
        cluster.global_step = step
        saved = dense.save()

    assert saved.removed == ("model.ckpt-1",)
    names = sorted(path.name for path in (tmp_path / "dense_only").glob("model.ckpt-*"))
    assert names == ["model.ckpt-2", "model.ckpt-3"]
    assert kept.exists()


def test_the_two_never_save_at_once(savers, cluster):
    full, dense = savers
    orders = []
    cluster.on_order = orders.append
    threads = [threading.Thread(target=saver.save, daemon=True) for saver in (full, dense)]
    for thread in threads:
        thread.start()

    wait_until(lambda: orders)
    answer(full, orders[0])
    wait_until(lambda: len(orders) == 2)
    answer(full, orders[1])
    for thread in threads:
        thread.join(10)

    assert sorted(order.dense_only for order in orders) == [False, True]


@pytest.mark.parametrize(
    ("kind", "rows", "complaint"),
    [("variables", 0, "the model has no variables"), ("table", 5, "a ps of another version")],
)
def test_what_is_not_variables_alone_is_no_dense_only_checkpoint(
    savers, cluster, tmp_path, kind, rows, complaint
):
    full, dense = savers
    cluster.on_order = lambda order: answer(full, order, kind, rows)
    with pytest.raises(SaveFailed, match=complaint):
        dense.save()

    assert [path.name for path in (tmp_path / "dense_only").iterdir()] == ["monolith_checkpoint"]


def test_a_ps_that_is_lost_fails_it_and_the_next_full_save_goes_on(savers, cluster, tmp_path):
    full, dense = savers
    cluster.on_order = lambda order: None
    cluster.is_lost = True
    with pytest.raises(ShardLost):
        dense.save()

    assert not list((tmp_path / "dense_only").glob("*-7*"))
    cluster.is_lost = False
    cluster.on_order = lambda order: answer(full, order)
    assert full.save().path.exists()
    assert (full.last.error, dense.last.path) == ("", "")


class FakeMetrics:
    def __init__(self):
        self.modes = []

    def saved(self, record, mode):
        self.modes.append((bool(record.error), str(mode)))


def test_only_pushes_of_a_save_that_succeeded_count_as_saved(cluster):
    metrics = FakeMetrics()
    news = DenseOnlyNews(cluster, SaveSchedule(1.0, 0, 0.0, 0), metrics)
    news.tell(SaveRecord(0.0, 0.0, 7, "path", pushes={1: 5}))
    news.tell(SaveRecord(0.0, 0.0, 8, error="disk full", pushes={1: 9}))
    assert news.is_wanted()
    assert cluster.asked == {1: 5}
    assert metrics.modes == [(False, "dense_only"), (True, "dense_only")]
    cluster.has_pushes = False
    assert not news.is_wanted(), "the last one has all of it"
    cluster.has_pushes = True
    cluster.lacks_rows = True
    assert not news.is_wanted(), "a part of a model is not exported"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"dense_save_every_s": 1.0, "dense_save_every_steps": 1}, "give one of them"),
        ({"dense_save_every_s": -1.0}, "below 0"),
        ({"dense_only_hold": True}, "--dense-only-hold goes with"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, complaint):
    with pytest.raises(InvalidSetting, match=complaint):
        ControllerConfig(model_dir="m", **settings)
