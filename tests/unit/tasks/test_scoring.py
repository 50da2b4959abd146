"""A checkpoint in memory answers like the cluster that saved it."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.checkpoint.directory import increments
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring import restore
from megalith.checkpoint.saving.increment import save_increment, seal_all
from megalith.checkpoint.saving.save import save_shard
from megalith.client import Ids
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    ShapeMismatch,
    UnknownTable,
    UnknownVariable,
)
from megalith.ps.store.store import Store
from megalith.schema import Adagrad, Segment, TableConfig, VariableConfig, Zeros
from megalith.tasks.scoring import load_model
from megalith.wire import routing
from support import checkpoints
from support.checkpoints import ITEM


def saved(tmp_path, rows=300_000, order="random"):
    """A checkpoint of rows on 2 ps and a variable."""
    rng = np.random.default_rng(1)
    ids = rng.choice(2**60, rows, replace=False)
    ids = np.sort(ids) if order == "sorted" else ids
    values = rng.normal(0, 1, (rows, 3)).astype(np.float32)
    variables = {"bias": np.ones(3, np.float32)}
    stores = checkpoints.stores_with([(ITEM, ids, values, 7)], variables)
    return checkpoints.write(stores, tmp_path, 120), ids, values, stores


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_rows_are_those_that_two_servers_held(tmp_path, order):
    path, ids, values, stores = saved(tmp_path, order=order)
    model = load_model(path)
    assert model.step == 120
    assert model.restored.rows == ids.size

    absent = np.arange(5) - 100
    asked = np.concatenate([ids[::-1], absent, ids[:10]])
    rows, variables = model.read({"item": asked}, ["bias"])
    expected = np.concatenate([values[::-1], np.zeros((5, 3)), values[:10]])
    np.testing.assert_array_equal(rows["item"], expected)

    (bias,) = [each for store in stores for each in store.variables()]
    np.testing.assert_array_equal(variables["bias"], bias.read())
    assert not variables["bias"].flags.writeable


def test_ids_may_be_given_as_a_task_gives_them(tmp_path):
    path, ids, values, _ = saved(tmp_path, rows=10)
    rows, variables = load_model(path).read({"item": Ids(ids[3:5], distinct=True)}, [])
    np.testing.assert_array_equal(rows["item"], values[3:5])
    assert variables == {}


def test_what_the_checkpoint_lacks_is_named(tmp_path):
    path, *_ = saved(tmp_path, rows=10)
    model = load_model(path)
    with pytest.raises(UnknownTable, match=r"no table user, it has \['item'\]"):
        model.read({"user": np.arange(2)}, [])
    with pytest.raises(UnknownVariable, match="no variable weights"):
        model.read({}, ["weights"])


def task(tables, variables=()):
    return SimpleNamespace(tables=tables, variables=variables)


def test_a_task_of_other_options_does_not_fit(tmp_path):
    path, *_ = saved(tmp_path, rows=10)
    model = load_model(path)
    model.check_fits(task((ITEM,), (VariableConfig("bias", np.zeros(3, np.float32)),)))

    wide = TableConfig("item", (Segment(9, Zeros(), Adagrad(0.1)),))
    with pytest.raises(ShapeMismatch, match="table item have 3 numbers, the task takes 9"):
        model.check_fits(task((wide,)))
    with pytest.raises(ShapeMismatch, match=r"variable bias is \[3\], the task takes \[4\]"):
        model.check_fits(task((), (VariableConfig("bias", np.zeros(4, np.float32)),)))


def test_no_checkpoint_and_a_damaged_one_are_two_errors(tmp_path):
    with pytest.raises(CheckpointNotFound, match="no complete checkpoint"):
        load_model(tmp_path / "model.ckpt-7")

    path, *_ = saved(tmp_path, rows=1000)
    (file, *_) = path.glob("table-*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointDamaged):
        load_model(path)


def test_a_checkpoint_that_goes_while_it_is_read_is_not_found(tmp_path, monkeypatch):
    path, *_ = saved(tmp_path, rows=10)
    load_tables = restore.row_loading.load_tables

    def removed_meanwhile(*args):
        shutil.rmtree(path)
        return load_tables(*args)

    monkeypatch.setattr(restore.row_loading, "load_tables", removed_meanwhile)
    with pytest.raises(CheckpointNotFound, match="no longer"):
        load_model(path)


@pytest.fixture
def chain(tmp_path):
    """A checkpoint of step 10, and an increment of step 20 that changes half of the rows."""
    store = Store(0)
    store.route(routing.Routing(1, ("a",), routing.even_owners(1), "run"), is_initialized=True)
    config = TableConfig("t", (Segment(2, Zeros(), Adagrad(0.5)),))
    table = EmbeddingTable(config)
    store.adopt(table=table)
    ids = np.random.default_rng(2).choice(2**60, 300_000, replace=False)
    table.apply_gradients(ids, np.ones((ids.size, 2), np.float32))
    first = table.lookup(ids)

    base = tmp_path / "model.ckpt-10"
    base.mkdir()
    sets = seal_all(store)
    files = save_shard(store, base, "s", 0, 1).files
    manifest.write(base, Manifest(10, 1, 1.0, tuple(files), save_id="base-id"))

    half = ids[::2].copy()
    table.apply_gradients(half, np.ones((half.size, 2), np.float32))
    work = tmp_path / "work"
    work.mkdir()
    files = save_increment(store, sets, work, "i", 0, 1).shard.files
    link = increments.read_chain(base).next_link()
    manifest.write(work, Manifest(20, 1, 2.0, tuple(files), save_id="i", link=link))
    increments.publish(work, base, 1)
    return SimpleNamespace(base=base, ids=ids, first=first, second=table.lookup(ids))


def test_increments_are_part_of_the_model(chain):
    model = load_model(chain.base)
    assert (model.step, model.restored.increments) == (20, 1)
    rows, _ = model.read({"t": chain.ids}, [])
    np.testing.assert_array_equal(rows["t"], chain.second)
    assert not np.array_equal(chain.first, chain.second)


def test_increments_that_go_while_they_are_read_are_left_out(chain, monkeypatch):
    """The next full save removes them between the manifests and the files of the first try."""
    load_tables = restore.row_loading.load_tables
    tries = []

    def overtaken(*args):
        tries.append(args)
        if len(tries) == 1:
            increments.remove_all(chain.base.parent)
        return load_tables(*args)

    monkeypatch.setattr(restore.row_loading, "load_tables", overtaken)
    model = load_model(chain.base)
    assert len(tries) == 2
    assert (model.step, model.restored.increments) == (10, 0)
    rows, _ = model.read({"t": chain.ids}, [])
    np.testing.assert_array_equal(rows["t"], chain.first)
