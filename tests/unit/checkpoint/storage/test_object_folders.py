"""A checkpoint on an object store: in the memory of the process, and on S3."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.checkpoint.directory import catalog, exempt_list, increments, listing
from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.inspection.overview import FolderStanding, overview
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.moving import pruning
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage import object_folders, scratch
from megalith.checkpoint.storage.object_store import ObjectStore
from megalith.controller.job_metrics import IncrementCounts
from megalith.controller.members.directives import Phase
from megalith.controller.saving import leftovers
from megalith.controller.saving.increments import IncrementSaves
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import CheckpointDamaged, CheckpointNotFound, NotReady, SaveFailed
from megalith.ps.store.store import Store
from megalith.wire import routing
from support import checkpoints, object_stores
from support.saves import FakeCoordinator

IDS = np.arange(500)
ROWS = np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def s3():
    with object_stores.s3_server() as environment, object_stores.set_environment(environment):
        yield


@pytest.fixture(params=["memory", "s3"])
def model_dir(request, s3):
    yield object_stores.new_folder(request.param)
    object_stores.forget_memory()


def save(model_dir, step, **options):
    stores = checkpoints.stores_with(
        [(checkpoints.ITEM, IDS, ROWS, 1000)], {"w": np.ones(3, np.float32)}
    )
    return checkpoints.write(stores, model_dir, step, **options)


def restored(folder, num_ps):
    stores = [Store(index) for index in range(num_ps)]
    reports = []
    for index, store in enumerate(stores):
        reports.append(restore_shard(store, folder, routing.even_owners(num_ps), index))

    return stores, reports


def test_a_checkpoint_is_saved_verified_and_restored_at_any_number_of_ps(model_dir):
    folder = save(model_dir, 120)
    assert catalog.latest(model_dir) == folder == model_dir / "model.ckpt-120"
    assert verify(folder).problems == []
    assert verify(folder).unnamed == []
    for num_ps in (1, 2, 3):
        stores, reports = restored(folder, num_ps)
        assert sum(report.rows for report in reports) == IDS.size
        owners = routing.even_owners(num_ps)[routing.buckets_of(IDS)]
        for index, store in enumerate(stores):
            (table,) = store.tables()
            mine = owners == index
            np.testing.assert_array_equal(table.lookup(IDS[mine]), ROWS[mine])


def test_nothing_of_a_save_or_a_restore_stays_on_this_machine(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "root", lambda: tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    restored(save(model_dir, 120), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_checkpoint_until_it_is_published(model_dir):
    work = catalog.begin(model_dir, 120, "0a1b2c3d")
    stored.write(work / "table-0.arrow", b"rows")
    manifest.write(work, manifest.Manifest(120, 1, 1.0, (), save_id="0a1b2c3d"))
    with pytest.raises(CheckpointNotFound):
        manifest.read(work)

    (entry,) = overview(model_dir).entries
    assert entry.standing is FolderStanding.INCOMPLETE
    assert catalog.publish(work, model_dir, 120) == work
    assert manifest.read(work).step == 120


def test_a_first_save_that_was_killed_does_not_keep_a_job_from_starting(model_dir):
    work = catalog.begin(model_dir, 120, "0a1b2c3d")
    stored.write(work / "table-0.arrow", b"rows")
    assert catalog.latest(model_dir) is None
    leftovers.remove_leftovers(model_dir)
    assert not work.exists()
    assert save(model_dir, 120) == work


def test_a_checkpoint_that_lost_its_manifest_and_the_list_is_still_missed(model_dir):
    folder = save(model_dir, 120)
    (folder / MANIFEST).unlink()
    (model_dir / LIST).unlink()
    with pytest.raises(CheckpointNotFound, match=r"model\.ckpt-120"):
        catalog.latest(model_dir)


def test_a_second_save_of_a_step_gets_another_name(model_dir):
    first = save(model_dir, 120)
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    assert save(model_dir, 120).name == "model.ckpt-r1-120"
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before


def test_of_two_saves_that_want_one_name_one_gets_the_next(model_dir, monkeypatch):
    names = iter("aab")
    monkeypatch.setattr(catalog, "_free_name", lambda *_: next(names))
    assert catalog.begin(model_dir, 120, "00000001").name == "a"
    assert catalog.begin(model_dir, 120, "00000002").name == "b"


def test_a_manifest_that_is_there_is_not_replaced(model_dir):
    folder = save(model_dir, 120)
    save_id = manifest.read(folder).save_id
    stored.write(object_folders.unpublished(folder, save_id), b"another")
    with pytest.raises(FileExistsError):
        object_folders.publish(folder)

    assert manifest.read(folder).step == 120


def test_what_a_controller_that_died_has_begun_is_removed(model_dir):
    kept = save(model_dir, 120)
    work = catalog.begin(model_dir, 130, "0a1b2c3d")
    stored.write(work / "table-0.arrow", b"rows")
    exported = catalog.begin(model_dir, 140, "0a1b2c3d", is_own=False)
    leftovers.remove_leftovers(model_dir)
    assert not work.exists()
    assert exported.exists()
    assert verify(kept).is_whole


def test_a_removal_takes_the_manifest_first_and_is_ended_by_the_next_controller(
    model_dir, monkeypatch
):
    old = save(model_dir, 120)
    new = save(model_dir, 130)
    with monkeypatch.context() as killed:
        killed.setattr(object_folders, "remove", lambda folder: None)
        assert catalog.remove(model_dir, old.name)

    assert not (old / MANIFEST).exists()
    assert any(path.name.startswith("table-") for path in old.iterdir())
    assert listing.read(model_dir).newest == new.name
    leftovers.remove_leftovers(model_dir)
    assert not old.exists()
    assert verify(new).is_whole


def test_a_removal_does_not_wait_for_each_answer(model_dir, monkeypatch):
    """No increment is made while those of the checkpoint before are removed: thousands of them."""
    folder = model_dir / "increments" / "model.ckpt-1"
    for number in range(4):
        stored.write(folder / f"00000{number}" / "rows", b"rows")

    both = threading.Barrier(2, timeout=20)
    remove = ObjectStore.remove

    def remove_beside_another(store, url):
        if url.endswith("/rows"):
            both.wait()

        remove(store, url)

    monkeypatch.setattr(ObjectStore, "remove", remove_beside_another)
    object_folders.begin_removal(folder)
    object_folders.remove(folder)
    assert not folder.is_dir()


def test_retention_removes_the_oldest(model_dir):
    exempt_list.create(model_dir)
    paths = [save(model_dir, step) for step in (120, 130, 140)]
    recorded = catalog.record_latest(model_dir, paths[-1], 2e9, retention=Retention(2, 0.0, 0.0))
    assert recorded.removed == ("model.ckpt-120",)
    assert [path.exists() for path in paths] == [False, True, True]


def test_prune_removes_old_ones_and_keeps_what_may_be_a_save_under_way(model_dir):
    for step in (120, 130):
        save(model_dir, step)

    work = catalog.begin(model_dir, 140, "0a1b2c3d")
    pruned = pruning.prune(model_dir, keep=1)
    assert [removal.name for removal in pruned.removals] == ["model.ckpt-120"]
    assert work.exists()
    later = pruning.plan(model_dir, 1, now_s=4e9)
    assert [removal.name for removal in later.removals] == ["model.ckpt-140"]


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_object_is_named_and_nothing_is_restored(model_dir, damage):
    folder = save(model_dir, 120)
    file = manifest.read(folder).files[0]
    path = folder / file.name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        stored.write(path, content[:-8] if damage == "cut" else content[:-1] + b"x")

    store = Store(0)
    with pytest.raises(CheckpointDamaged) as error:
        restore_shard(store, folder, routing.even_owners(1), 0)

    assert str(path) in str(error.value)
    assert store.tables() == []
    assert any(file.name in problem.file for problem in verify(folder).problems)


def test_a_list_that_was_taken_away_is_an_error_and_no_empty_model(model_dir):
    folder = save(model_dir, 120)
    (model_dir / LIST).unlink()
    with pytest.raises(CheckpointNotFound) as error:
        catalog.latest(model_dir)

    assert folder.name in str(error.value)
    assert "--checkpoint-dir" in str(error.value)


@pytest.mark.parametrize("is_removal_over", [True, False])
def test_a_ps_that_is_late_leaves_nothing_of_a_save_that_was_given_up(model_dir, is_removal_over):
    """No folder is gone that it could miss, and files of nobody's would stay for good."""
    folder = catalog.begin(model_dir, 120, "0a1b2c3d")
    if is_removal_over:
        leftovers.discard(folder)
    else:
        object_folders.begin_removal(folder)

    (store,) = checkpoints.stores_with([(checkpoints.ITEM, IDS, ROWS, 1000)], num_ps=1)
    with pytest.raises(SaveFailed, match="the save was given up"):
        save_shard(store, folder, "0a1b2c3d", 0, 1)

    assert list(folder.glob("*.arrow")) == []


# --- a controller that was paused, and wakes up after another one has taken its place ---

OLDER, NEWER = "0000000a", "0000000b"


def complete(work, save_id):
    """What a controller writes when all servers have answered."""
    manifest.write(work, manifest.Manifest(120, 1, 1.0, (), save_id=save_id))


def checkpoint_begun_twice(model_dir):
    """The folder of two saves, and how to publish one: the older was removed with its controller."""
    older = catalog.begin(model_dir, 120, OLDER)
    leftovers.remove_leftovers(model_dir)
    newer = catalog.begin(model_dir, 120, NEWER)
    assert older == newer
    return newer, lambda save_id: catalog.publish(newer, model_dir, 120, save_id)


def increment_begun_twice(model_dir):
    base = save(model_dir, 110)
    older = increments.begin(base, 1, 120, OLDER)
    leftovers.remove_leftovers(model_dir)
    newer = increments.begin(base, 1, 120, NEWER)
    assert older == newer
    return newer, lambda save_id: increments.publish(newer, base, 1, save_id)


@pytest.mark.parametrize("is_early", [True, False], ids=["early", "late"])
@pytest.mark.parametrize("begun_twice", [checkpoint_begun_twice, increment_begun_twice])
def test_a_save_whose_name_is_another_ones_by_now_leaves_that_one_alone(
    model_dir, begun_twice, is_early
):
    """Early: before the newer save is published."""
    folder, publish = begun_twice(model_dir)
    stored.write(folder / f"table-{NEWER}", b"rows")
    complete(folder, NEWER)
    if not is_early:
        publish(NEWER)

    stored.write(folder / f"table-{OLDER}", b"rows of a server that is late")
    complete(folder, OLDER)
    with pytest.raises(FileExistsError):
        publish(OLDER)

    leftovers.discard(folder, OLDER)
    if is_early:
        publish(NEWER)

    assert manifest.read(folder).save_id == NEWER
    assert {path.name for path in folder.iterdir()} == {MANIFEST, "saving", f"table-{NEWER}"}


def test_a_save_that_failed_in_a_folder_of_nobody_removes_all_of_it(model_dir):
    folder = catalog.begin(model_dir, 120, OLDER)
    leftovers.remove_leftovers(model_dir)
    stored.write(folder / f"table-{OLDER}", b"rows of a server that is late")
    leftovers.discard(folder, OLDER)
    assert not folder.exists()


def test_a_controller_that_sleeps_before_the_manifest_is_written_does_not_spoil_the_next_save(
    model_dir,
):
    cluster = FakeCoordinator()
    saver = Saver(cluster, model_dir, timeout_s=60.0, appear_s=0.0)
    newer = []

    def answer(order):
        for session in (1, 2):
            saver.answer(session, ShardSaved(order.save_id, []))

    def sleep_if_answered(timeout_s):
        """A worker that moves is asked once more when all servers have answered."""
        if cluster.orders:
            leftovers.remove_leftovers(model_dir)
            newer.append(catalog.begin(model_dir, 12, NEWER))
            complete(newer[0], NEWER)
            cluster.check_current = be_replaced
        return []

    def be_replaced():
        raise NotReady("a newer controller serves it")

    cluster.on_order = answer
    cluster.moving_workers = lambda: (0,)
    cluster.ask_for_reports = sleep_if_answered
    with pytest.raises(NotReady, match="a newer controller"):
        saver.save()

    catalog.publish(newer[0], model_dir, 12, NEWER)
    assert manifest.read(newer[0]).save_id == NEWER
    assert [path.name for path in model_dir.glob("model.ckpt-*")] == ["model.ckpt-12"]


def test_a_controller_that_was_replaced_does_not_take_the_next_ones_increment_for_left(model_dir):
    base = save(model_dir, 110)
    newer = increments.begin(base, 1, 120, NEWER)
    stopping = threading.Event()

    def be_replaced():
        raise NotReady("a newer controller serves it")

    def take_once(write):
        stopping.set()
        write(SimpleNamespace(newest_step=lambda: 120))

    older = IncrementSaves(
        SimpleNamespace(
            state=lambda: SimpleNamespace(phase=Phase.RUNNING),
            lacks_rows=False,
            has_unsaved_pushes=True,
            wait_for_returning_ps=lambda: None,
            check_current=be_replaced,
        ),
        SimpleNamespace(in_turn=take_once),
        SimpleNamespace(newest=base),
        None,
        IncrementCounts(),
        model_dir,
        every_s=0.01,
    )
    older.run(stopping)
    assert "a newer controller" in older.trouble.error
    assert object_folders.own_save_id(newer) == NEWER
    complete(newer, NEWER)
    increments.publish(newer, base, 1, NEWER)
