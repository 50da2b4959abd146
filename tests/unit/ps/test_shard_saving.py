"""A ps writes no longer than somebody waits for its files."""

import shutil

import numpy as np
import pytest

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage import object_folders
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import SaveFailed
from megalith.protos import coordination_pb2
from megalith.ps.shard_saving import ShardSaving
from megalith.ps.store.known_saves import KnownSaves
from megalith.ps.store.store import Store
from megalith.schema import Segment, Sgd, TableConfig, Zeros
from support import object_stores

ROWS = 200_000  # of which 16,384 are written at once
TABLE = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),))


class Saves:
    """A ps with rows, which saves into folders of its own; `during` happens after two parts."""

    def __init__(self, model_dir, monkeypatch):
        store = Store(0)
        table = EmbeddingTable(TABLE)
        table.assign(np.arange(ROWS), np.ones((ROWS, 1), np.float32))
        store.adopt(table=table)
        self.saving = ShardSaving(store, KnownSaves(store, 60.0))
        self.model_dir = model_dir
        self.parts = 0
        self.during = lambda: None
        dump = EmbeddingTable.dump

        def dump_and_count(*arguments, **options):
            self.parts += 1
            if self.parts == 3:
                self.during()

            return dump(*arguments, **options)

        monkeypatch.setattr(EmbeddingTable, "dump", dump_and_count)

    def save(self, save_id):
        folder = self.model_dir / save_id
        folder.mkdir()
        order = coordination_pb2.SaveShard(save_id=save_id, directory=str(folder), step=1)
        return self.saving.write(order, 0, 1)


@pytest.fixture
def saves(tmp_path, monkeypatch):
    return Saves(tmp_path, monkeypatch)


def test_a_save_ends_when_another_one_is_ordered(saves, tmp_path):
    """Else several write at once after a save that was too slow, each slower than the last."""
    newer = []
    saves.during = lambda: newer.append(saves.save("newer"))
    with pytest.raises(SaveFailed, match="the controller has ordered another one"):
        saves.save("older")

    assert not any((tmp_path / "older").iterdir())
    (table,) = (file for file in newer[0].files if file.kind is FileKind.TABLE)
    assert table.rows == ROWS
    manifest.check_size(tmp_path / "newer", table)


def test_a_save_ends_when_its_folder_is_gone(saves, tmp_path):
    """Files that have no name any more would fill the disk until they are complete."""
    saves.during = lambda: shutil.rmtree(tmp_path / "model.ckpt")
    with pytest.raises(SaveFailed, match=r"model.ckpt is gone"):
        saves.save("model.ckpt")

    assert saves.parts <= 4


def increment_after(base, number, save_id, folder):
    order = coordination_pb2.SaveShard(save_id=save_id, directory=str(folder), step=1)
    order.increment.base = base
    order.increment.number = number
    return order


def num_rows(written):
    return sum(file.rows for file in written.files if file.kind is FileKind.TABLE)


def test_an_increment_that_was_given_up_does_not_say_where_the_next_one_goes_on(monkeypatch):
    """On an object store it has the folder of the one in its place, and may see newer rows."""
    store = Store(0)
    table = EmbeddingTable(TABLE)
    store.adopt(table=table)
    saving = ShardSaving(store, KnownSaves(store, 60.0))
    model_dir = object_stores.new_folder("memory")
    object_folders.begin(model_dir / "base", "base", is_own=True)
    saving.write(coordination_pb2.SaveShard(save_id="base", directory=f"{model_dir}/base"), 0, 1)
    first, second = model_dir / "000001", model_dir / "000002"
    look_up = EmbeddingTable.lookup_entry
    written = []

    def change(count):
        table.assign(np.arange(count), np.ones((count, 1), np.float32))

    def end_another_one_first(*arguments):
        monkeypatch.setattr(EmbeddingTable, "lookup_entry", look_up)
        object_folders.begin_removal(first)
        object_folders.remove(first)
        object_folders.begin(first, "newer", is_own=True)
        written.append(saving.write(increment_after("base", 1, "newer", first), 0, 1))
        change(30)
        return look_up(*arguments)

    change(1000)
    object_folders.begin(first, "older", is_own=True)
    monkeypatch.setattr(EmbeddingTable, "lookup_entry", end_another_one_first)
    with pytest.raises(SaveFailed, match="the controller has ordered another one"):
        saving.write(increment_after("base", 1, "older", first), 0, 1)

    assert not any(first.glob("*-older.arrow"))
    object_folders.begin(second, "next", is_own=True)
    written.append(saving.write(increment_after("base", 2, "next", second), 0, 1))
    assert [num_rows(each) for each in written] == [1000, 30]
    object_stores.forget_memory()
