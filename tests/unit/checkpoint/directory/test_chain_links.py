"""Each increment goes on from what is before it: one that is missing or damaged is named."""

import json
import shutil

import numpy as np
import pytest

from megalith.checkpoint.directory import increments
from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import (
    ChangesForgotten,
    CheckpointDamaged,
)
from megalith.ps.store.store import Store
from megalith.wire import routing
from support.chains import DIM, Chain, config, routed, train

WIDTH = 2 * DIM


def test_a_number_of_increments_that_nobody_can_have_written_is_a_missing_one(tmp_path):
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    chain = Chain(stores, tmp_path)
    chain.save()
    chain.increment()
    newest = tmp_path / increments.FOLDER / increments.NEWEST
    newest.write_text(json.dumps({"base": chain.base.name, "number": 10**12}))
    with pytest.raises(CheckpointDamaged, match=r"increment 2 of .* is missing or damaged"):
        read_chain(chain.base)


def small_chain(tmp_path, count=3):
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    train(stores, np.arange(100))
    chain = Chain(stores, tmp_path)
    chain.save()
    paths = []
    for turn in range(count):
        train(stores, np.arange(turn, 100, 7))
        paths.append(chain.increment())
    return chain, paths


def test_a_gap_is_named_and_nothing_is_restored(tmp_path):
    chain, paths = small_chain(tmp_path)
    shutil.rmtree(paths[1])
    store = Store(0)
    with pytest.raises(CheckpointDamaged, match=r"increment 2 of .* is missing") as error:
        restore_shard(store, chain.base, routing.even_owners(1), 0)
    assert str(paths[1]) in str(error.value)
    assert store.tables() == []


def test_a_missing_last_increment_is_missed(tmp_path):
    chain, paths = small_chain(tmp_path)
    shutil.rmtree(paths[2])
    with pytest.raises(CheckpointDamaged, match=r"increment 3 of .* is missing"):
        read_chain(chain.base)
    shutil.rmtree(paths[0].parent)
    with pytest.raises(CheckpointDamaged, match=r"increment 1 of .* is missing"):
        read_chain(chain.base)


def test_without_the_folder_of_increments_the_checkpoint_itself_is_restored(tmp_path):
    chain, _ = small_chain(tmp_path)
    shutil.rmtree(tmp_path / "increments")
    assert read_chain(chain.base).number == 0


def test_a_removal_that_was_cut_short_leaves_all_increments_or_none(tmp_path, monkeypatch):
    """Whoever goes back to the checkpoint must not get the first few of its increments."""
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    chain = Chain(stores, tmp_path)
    chain.save()
    for turn in range(3):
        train(stores, np.arange(turn * 10, turn * 10 + 10))
        chain.increment()

    def killed(path, **_):
        if path.exists():
            for file in (path / "000003").iterdir():
                file.unlink()
            (path / "000003").rmdir()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            increments.remove_all(tmp_path)
    assert read_chain(chain.base).number == 0
    increments.remove_all(tmp_path)
    assert list((tmp_path / increments.FOLDER).iterdir()) == []


def test_increments_of_a_checkpoint_that_another_job_starts_from_stay_with_it(tmp_path):
    """Its servers that are replaced would otherwise come back with older rows than the others."""
    chain, _ = small_chain(tmp_path)
    number = read_chain(chain.base).number
    assert number > 1
    increments.remove_all(tmp_path, {chain.base.name})
    assert read_chain(chain.base).number == number
    increments.remove_all(tmp_path)
    assert read_chain(chain.base).number == 0


def test_a_chain_that_was_read_counts_until_an_increment_comes_or_goes(tmp_path):
    chain = Chain(routed(1), tmp_path)
    chain.save()
    chain.increment()
    chain.increment()
    known = read_chain(chain.base)
    assert increments.is_unchanged(known)
    third = chain.increment()
    assert not increments.is_unchanged(known)
    assert increments.is_unchanged(known.with_next(read_chain(chain.base).increments[-1]))
    assert read_chain(chain.base, through=2) == known
    shutil.rmtree(third)
    assert not increments.is_unchanged(known), "the note of the newest one says that it is missing"


def test_an_increment_of_another_chain_does_not_fit(tmp_path):
    chain, paths = small_chain(tmp_path / "a")
    _, others = small_chain(tmp_path / "b", count=4)
    shutil.rmtree(paths[1])
    shutil.copytree(others[2], paths[1])
    with pytest.raises(CheckpointDamaged, match="does not go on from what is before it"):
        read_chain(chain.base)


def test_a_changed_manifest_or_file_is_damaged(tmp_path):
    chain, paths = small_chain(tmp_path)
    (rows,) = paths[0].glob("table-*")
    data = bytearray(rows.read_bytes())
    data[len(data) // 2] ^= 1
    rows.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match=rows.name):
        restore_shard(Store(0), chain.base, routing.even_owners(1), 0)

    content = json.loads((paths[0] / MANIFEST).read_bytes())
    content.pop("checksum")
    content["step"] = 77
    (paths[0] / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CheckpointDamaged, match="000002 does not go on from what is before it"):
        read_chain(chain.base)


def test_rows_that_are_missing_in_the_log_stop_the_restore(tmp_path):
    """Should an id ever be missed by the log, the count of rows tells it."""
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config()))
    chain = Chain(stores, tmp_path)
    chain.save()
    table = stores[0].tables()[0]
    train(stores, np.arange(10))
    table.load(np.array([99]), np.zeros((1, WIDTH), np.float32), np.array([1]))  # tells nobody
    chain.increment()
    with pytest.raises(CheckpointDamaged, match=r"gives this ps 10 rows.*had 11"):
        restore_shard(Store(0), chain.base, routing.even_owners(1), 0)


def test_a_log_that_forgot_changes_makes_no_increment_and_leaves_no_file(tmp_path):
    stores = routed(1)
    stores[0].adopt(table=EmbeddingTable(config(touched_capacity=50)))
    chain = Chain(stores, tmp_path)
    chain.save()
    train(stores, np.arange(51))
    with pytest.raises(ChangesForgotten, match="touched_capacity"):
        chain.increment()
    assert list((tmp_path / "saving-1").iterdir()) == []
