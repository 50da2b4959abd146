"""Copies of a checkpoint with an increment, from each storage to each."""

import shutil
from pathlib import Path

import pytest

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.moving import copying
from megalith.checkpoint.moving.copying import copy
from megalith.checkpoint.storage import object_folders
from megalith.errors import CheckpointDamaged, InvalidRequest, SaveFailed
from support import object_stores

SOURCE = Path(__file__).parents[3] / "fixtures" / "checkpoint-v3" / "model.ckpt-120"


@pytest.fixture(params=["path", "memory"])
def out(request, tmp_path):
    yield tmp_path / "copy" if request.param == "path" else object_stores.new_folder("memory")
    object_stores.forget_memory()


def content_of(chain):
    """All files of a checkpoint and its increments, by folder and name."""
    content = {}
    for number, (folder, _) in enumerate(chain.folders):
        for path in folder.iterdir():
            if not object_folders.is_mark(path.name):
                content[number, path.name] = path.read_bytes()

    return content


@pytest.mark.golden("G26")
def test_a_copy_with_two_workers_keeps_what_is_in_folders_below(out):
    copied = copy(SOURCE, out, workers=2)
    newest = catalog.latest(out)
    assert (copied.path, copied.increments) == (str(newest), 1)
    assert newest.name == "model.ckpt-120"
    assert content_of(increments.read_chain(newest)) == content_of(increments.read_chain(SOURCE))
    assert verify(newest).is_whole
    assert verify(newest).increments == 1


def test_a_copy_from_a_store_is_the_same_as_what_went_there(tmp_path):
    there = copy(SOURCE, object_stores.new_folder("memory"))
    stored = catalog.latest(object_stores.locate(there.path).parent)
    back = copy(stored, tmp_path / "back")
    chain = increments.read_chain(Path(back.path))
    assert content_of(chain) == content_of(increments.read_chain(SOURCE))
    object_stores.forget_memory()


def test_a_directory_with_checkpoints_is_refused(out):
    copy(SOURCE, out)
    with pytest.raises(InvalidRequest, match="has checkpoints already"):
        copy(SOURCE, out)


def test_increments_that_a_killed_copy_has_left_do_not_become_those_of_the_next(tmp_path, out):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying._Copy, "_publish_base", die)
        patch.setattr(increments, "remove_all", lambda _: None)  # as if the process were gone
        with pytest.raises(Killed):
            copy(SOURCE, out)

    shutil.copytree(SOURCE, tmp_path / "alone" / SOURCE.name)
    with pytest.raises(InvalidRequest, match="increments of a checkpoint that is not there"):
        copy(tmp_path / "alone" / SOURCE.name, out)

    assert catalog.latest(out) is None


@pytest.mark.parametrize("is_of_increment", [False, True])
def test_a_damaged_file_is_named_and_nothing_is_copied(tmp_path, out, is_of_increment):
    source = Path(copy(SOURCE, tmp_path / "source").path)
    chain = increments.read_chain(source)
    folder = chain.increments[0].directory if is_of_increment else source
    file = folder / manifest.read(folder).files[0].name
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointDamaged, match=file.name):
        copy(source, out)

    assert catalog.latest(out) is None
    assert not [path for path in out.glob("model.ckpt-*") if path.exists()]
    assert not list((out / increments.FOLDER).glob("*/*"))


def test_a_storage_that_fails_leaves_nothing(out, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("megalith.checkpoint.storage.files.put", fail)
    with pytest.raises(SaveFailed, match=r"No space left on device; nothing was copied"):
        copy(SOURCE, out)

    assert not [path for path in out.glob("**/*") if path.name == MANIFEST]
    assert catalog.latest(out) is None
