"""When a full save takes the place of increments."""

import errno
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.directory import increments as chains
from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage import object_folders
from megalith.checkpoint.storage.object_store import StorageFailed
from megalith.controller.job_metrics import IncrementCounts
from megalith.controller.members.directives import Phase
from megalith.controller.saving import increments
from megalith.controller.saving.increments import IncrementSaves, is_long
from megalith.controller.saving.records import SaveRecord
from megalith.errors import ChangesForgotten, ChangesNotNoted, SaveFailed
from support import object_stores

MB = 1 << 20
SOURCE = Path(__file__).parents[2] / "fixtures" / "checkpoint-v4" / "model.ckpt-120"


def of_size(num_bytes):
    file = ShardFile("table", FileKind.TABLE, "t", 1, num_bytes, "")
    return Manifest(1, 1, 1.0, (file,), save_id="id")


def chain_of(base_bytes, *increment_bytes):
    directory = Path("model.ckpt-1")
    parts = tuple(Increment(directory, of_size(size)) for size in increment_bytes)
    return Chain(directory, of_size(base_bytes), parts)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (chain_of(1000 * MB), False),
        (chain_of(1000 * MB, 300 * MB, 200 * MB), False),
        (chain_of(1000 * MB, 300 * MB, 201 * MB), True),
        (chain_of(1 * MB, 60 * MB), False),  # a small model, mostly of variables
        (chain_of(1 * MB, 60 * MB, 5 * MB), True),
        (chain_of(1000 * MB, *[1] * 999), False),
        (chain_of(1000 * MB, *[1] * 1000), True),
    ],
)
def test_increments_are_replaced_when_they_are_half_of_the_checkpoint_or_very_many(chain, expected):
    assert is_long(chain) == expected


class Saves:
    """A saver whose full saves fail, or do not; `done` is what it was asked for."""

    def __init__(self, fails):
        self.fails = fails
        self.stopping = threading.Event()
        self.done = []

    def save(self, is_stopgap):
        self.done.append("save")
        if not self.fails or len(self.done) > 1:
            self.stopping.set()
        if self.fails:
            raise SaveFailed("no room for a full one")

    def in_turn(self, write):
        self.done.append("increment")
        self.stopping.set()


def taking_of(saves, newest, every_s=0.01, clock=time.monotonic):
    """Increments of a job that trains, beside the checkpoint `newest`."""
    coordinator = SimpleNamespace(
        state=lambda: SimpleNamespace(phase=Phase.RUNNING),
        lacks_rows=False,
        has_unsaved_pushes=True,
        wait_for_returning_ps=lambda: None,
    )
    return IncrementSaves(
        coordinator,
        saves,
        SimpleNamespace(newest=newest),
        None,
        IncrementCounts(),
        SOURCE.parent,
        every_s,
        clock=clock,
        monotonic=clock,
    )


@pytest.mark.parametrize(("fails", "expected"), [(True, ["save", "increment"]), (False, ["save"])])
def test_while_a_full_save_in_their_place_fails_increments_go_on(monkeypatch, fails, expected):
    """A disk may have room for an increment only: without it all that is trained would be lost."""
    monkeypatch.setattr(increments, "is_long", lambda chain: True)
    saves = Saves(fails)
    taking = taking_of(saves, SOURCE)
    taking.run(saves.stopping)
    assert saves.done == expected


class Clock:
    """A clock that stands unless somebody waits; also the event that ends it all at `until`."""

    def __init__(self):
        self.now = 1000.0
        self.until = math.inf

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        return self.now >= self.until


class SlowSaves:
    """A saver whose increments take `seconds`."""

    def __init__(self, clock, seconds):
        self.clock = clock
        self.seconds = seconds
        self.begins = []
        self.fault = None
        self.full_begins = []
        self.full_fault = None

    def in_turn(self, write):
        self.begins.append(self.clock.now)
        self.clock.now += self.seconds
        if self.fault is not None:
            raise self.fault

    def save(self, is_stopgap):
        self.full_begins.append(self.clock.now)
        self.clock.now += 100.0
        if self.full_fault is not None:
            raise self.full_fault


def begins_of(taking, saves, clock, until):
    """When increments begin up to that time."""
    clock.until = until
    taking.run(clock)
    return saves.begins


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(3.0, [1010, 1020, 1030, 1040]), (12.0, [1010, 1022.25, 1034.5, 1046.75])],
)
def test_the_interval_of_increments_counts_from_their_begin(seconds, expected):
    """What is trained while one is written is in no file before the next one is."""
    clock = Clock()
    saves = SlowSaves(clock, seconds)
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    assert begins_of(taking, saves, clock, until=1049.0) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3.0, [1010, 1023, 1036]), (12.0, [1010, 1032, 1054])]
)
@pytest.mark.parametrize("fault", [SaveFailed("no room"), OSError(errno.EIO, "slow disk")])
def test_after_an_increment_that_failed_there_is_a_whole_interval(fault, seconds, expected):
    """A disk that takes longer to fail than the interval would never be left alone."""
    clock = Clock()
    saves = SlowSaves(clock, seconds)
    saves.fault = fault
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    assert begins_of(taking, saves, clock, until=expected[-1] + 5.0) == expected


def test_a_full_save_that_fails_in_place_of_many_increments_is_not_tried_with_each(monkeypatch):
    """It may take an hour to fail, and no increment is made meanwhile."""
    monkeypatch.setattr(increments, "is_long", lambda chain: True)
    clock = Clock()
    saves = SlowSaves(clock, 1.0)
    saves.full_fault = SaveFailed("no room for a full one")
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    begins = begins_of(taking, saves, clock, until=1700.0)
    assert saves.full_begins == [1010.0]
    assert begins[0] == 1110.0
    assert begins[1:4] == [1111.25, 1121.25, 1131.25]
    assert len(begins) == 60
    begins_of(taking, saves, clock, until=1750.0)
    assert len(saves.full_begins) == 2, "it is tried again later"


def test_after_a_long_full_save_an_increment_is_due_at_once(tmp_path):
    clock = Clock()
    saves = SlowSaves(clock, 1.0)
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    clock.now += 1200.0
    taking.saved(SaveRecord(clock.now, 1200.0, 12, str(tmp_path / "model.ckpt-12")))
    assert begins_of(taking, saves, clock, until=2202.0) == [2200.25]

    clock.now = 2203.0
    taking.saved(SaveRecord(clock.now, 2.0, 13, str(tmp_path / "model.ckpt-13")))
    assert begins_of(taking, saves, clock, until=2212.0) == [2200.25, 2211.0]


def test_full_saves_in_place_of_increments_leave_an_interval_between_them():
    """A delta log that is too small for one interval is too small for all of them."""
    clock = Clock()
    saves = SlowSaves(clock, 1.0)
    saves.fault = ChangesForgotten("touched_capacity")
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    assert begins_of(taking, saves, clock, until=1240.0) == [1010.0, 1121.0, 1232.0]


def test_since_when_increments_fail_is_known_until_one_is_complete(tmp_path):
    clock = Clock()
    saves = SlowSaves(clock, 1.0)
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    assert taking.trouble is None
    saves.fault = SaveFailed("ps-0: no room")
    begins_of(taking, saves, clock, until=1015.0)
    assert taking.trouble == (1011.0, "ps-0: no room")
    saves.fault = SaveFailed("ps-1: no room")
    begins_of(taking, saves, clock, until=1025.0)
    assert taking.trouble == (1011.0, "ps-1: no room")


def test_an_unforeseen_fault_is_no_silent_end_of_increments():
    clock = Clock()
    saves = SlowSaves(clock, 1.0)
    saves.fault = ZeroDivisionError()
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    assert begins_of(taking, saves, clock, until=1025.0) == [1010.0, 1021.0]
    assert taking.trouble == (1011.0, "ZeroDivisionError")


def test_where_no_increment_can_ever_be_made_full_saves_keep_their_own_clock(caplog):
    """They would follow each other for ever in place of increments."""
    clock = Clock()
    saves = SlowSaves(clock, 1.0)
    saves.fault = ChangesNotNoted("table t has touched_capacity 0")
    taking = taking_of(saves, SOURCE, every_s=10.0, clock=clock)
    assert begins_of(taking, saves, clock, until=1039.0) == [1010.0, 1020.0, 1030.0]
    assert clock.now < 1100, "no full save"
    assert taking.trouble == (1011.0, "table t has touched_capacity 0")
    assert caplog.text.count("no increments are made") == 1


def test_a_list_that_cannot_be_read_after_a_save_leaves_the_increments(
    monkeypatch, tmp_path, caplog
):
    def unreadable(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(increments.catalog, "is_newest", unreadable)
    taking = taking_of(None, None)
    taking.saved(SaveRecord(1.0, 0.5, 12, str(tmp_path / "model.ckpt-12")))
    assert "increments that are not needed any more stay" in caplog.text


class EmptyShards:
    """What ps write who have nothing."""

    def newest_step(self):
        return 120

    def write(self, folder, step, save_id, began_at_s, link):
        saved = Manifest(step, 1, began_at_s, (), save_id=save_id, link=link)
        manifest.write(folder, saved)
        return saved

    def pushes_written(self):
        return {}


def saved_in(model_dir):
    """A checkpoint of nothing, the newest of that directory."""
    work = catalog.begin(model_dir, 120, "ab12")
    manifest.write(work, Manifest(120, 1, 1.0, (), save_id="ab12"))
    path = catalog.publish(work, model_dir, 120)
    catalog.record_latest(model_dir, path, 1.0)
    return path


def taking_into(model_dir, clock):
    """Increments of a checkpoint of nothing, every 10 s, into that directory."""
    base = saved_in(model_dir)
    saves = SimpleNamespace(in_turn=lambda take: take(EmptyShards()))
    taking = taking_of(saves, base, every_s=10.0, clock=clock)
    taking._model_dir = model_dir
    taking._unsaved = SimpleNamespace(saved=lambda path, step, number: None)
    taking._coordinator.check_current = lambda: None
    taking._coordinator.checkpoint_saved = lambda path, at_s, pushes: None
    return taking, base


def test_a_ps_that_was_waited_for_and_lacks_rows_is_in_no_increment(tmp_path):
    """No job would start from a chain whose last part has less rows than it says."""
    clock = Clock()
    taking, base = taking_into(tmp_path, clock)
    coordinator = taking._coordinator
    coordinator.wait_for_returning_ps = lambda: setattr(coordinator, "lacks_rows", True)
    clock.until = 1015.0
    taking.run(clock)
    assert taking.trouble is None
    assert chains.read_chain(base).number == 0


def test_increments_that_nobody_would_start_from_are_not_made_and_status_says_so(tmp_path):
    """The answer of the storage to the last save was lost, and its list names that save."""
    clock = Clock()
    taking, base = taking_into(tmp_path, clock)
    listed = saved_in(tmp_path)
    clock.until = 1015.0
    taking.run(clock)
    assert f"names another checkpoint than {base} as the newest" in taking.trouble.error
    assert "megalith ctl save" in taking.trouble.error
    assert chains.read_chain(base).number == 0
    assert chains.read_chain(listed).number == 0


@pytest.mark.parametrize("is_half_removed", [False, True])
def test_what_an_increment_has_left_that_failed_does_not_keep_the_next_one(is_half_removed):
    """The store could not be reached when it was to be removed; without a full save it stayed."""
    model_dir = object_stores.new_folder("memory")
    clock = Clock()
    taking, base = taking_into(model_dir, clock)
    left = model_dir / chains.FOLDER / base.name / "000001"
    if is_half_removed:
        stored.write(left / "table-of-a-ps", b"rows")
        object_folders.begin_removal(left)
    else:
        object_folders.begin(left, "dead", is_own=True)

    clock.until = 1015.0
    taking.run(clock)
    assert taking.trouble is None
    assert chains.read_chain(base).number == 1
    assert sorted(path.name for path in left.iterdir()) == ["manifest.json", "saving"]


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_an_increment_stays_if_the_answer_to_its_last_write_is_lost(monkeypatch, tmp_path, scheme):
    """It is named as the newest one by then: without it no job would start from the chain."""
    model_dir = tmp_path if scheme == "file" else object_stores.new_folder(scheme)
    clock = Clock()
    taking, base = taking_into(model_dir, clock)
    write = stored.write
    is_lost = [False, True, False]

    def write_and_lose(path, content):
        write(path, content)
        if path.name == chains.NEWEST and is_lost.pop(0):
            raise StorageFailed(errno.EIO, "no answer", str(path))

    monkeypatch.setattr(stored, "write", write_and_lose)
    clock.until = 1025.0
    taking.run(clock)
    assert "no answer" in taking.trouble.error
    assert chains.read_chain(base).number == 2

    clock.until = 1035.0
    taking.run(clock)
    assert taking.trouble is None
    assert chains.read_chain(base).number == 3
