import json
import os
import shutil
import weakref
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.layout import arrow_files, integrity, manifest, schema_json
from megalith.checkpoint.restoring import row_loading
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.errors import CheckpointDamaged, CheckpointNotFound, LimitExceeded, SaveFailed
from megalith.ps.store.store import Store
from megalith.schema import (
    Adagrad,
    Adam,
    AdmissionConfig,
    FilterKind,
    Fp16,
    Ftrl,
    OneBit,
    Ones,
    PolynomialDecay,
    RandomUniform,
    Segment,
    Sgd,
    StochasticRoundingFloat16,
    TableConfig,
    VariableConfig,
)
from megalith.wire import routing
from support import at_size
from support.saved_stores import restore, save

IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 5_000)
OPTIMIZERS = {"sgd": Sgd(0.5), "adagrad": Adagrad(0.5)}


def trained_stores(num_ps):
    """Stores that hold the same rows and variables, spread over `num_ps`."""
    current = routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps))
    stores = [Store(index) for index in range(num_ps)]
    rng = np.random.default_rng(1)
    gradients = rng.standard_normal((IDS.size, 3)).astype(np.float32)
    for name, optimizer in OPTIMIZERS.items():
        for index, store in enumerate(stores):
            table = EmbeddingTable(TableConfig(name, (Segment(3, RandomUniform(), optimizer),)))
            mine = current.owner_of(IDS) == index
            table.apply_gradients(IDS[mine], gradients[mine], req_time_s=1234)
            store.adopt(table=table)
    for name in ("w/a", "w/b", "w/c"):
        variable = Variable(VariableConfig(name, np.zeros(4, np.float32), Adagrad(0.1)))
        variable.apply(UpdateKind.GRADIENT, np.arange(4, dtype=np.float32) + 1)
        stores[current.owner_of_name(name)].adopt(variable=variable)
    return stores


def forget_blocks(directory):
    """Make a manifest as early versions wrote it."""

    def forget(content):
        for item in content["files"]:
            item["blocks"] = []
            item["sha256"] = manifest.sha256_of(directory / item["name"])

    rewrite_manifest(directory, forget)


def content(stores):
    """Everything in the stores, by name and id."""
    rows = {}
    for store in stores:
        for table in store.tables():
            part = table.dump(limit=IDS.size + 1)
            for place, key in enumerate(part.ids.tolist()):
                assert (table.config.name, key) not in rows
                rows[table.config.name, key] = (part.rows[place].tolist(), int(part.times[place]))
        for variable in store.variables():
            value, state = variable.dump()
            rows[variable.config.name] = (
                value.tolist(),
                {name: field.tolist() for name, field in state.items()},
            )
    return rows


@pytest.mark.parametrize("num_ps", [1, 2, 5])
def test_a_checkpoint_of_two_servers_restores_to_equal_values_on_any_number(tmp_path, num_ps):
    stores = trained_stores(2)
    save(stores, tmp_path / "c")
    restored = restore(tmp_path / "c", num_ps)
    assert content(restored) == content(stores)
    assert len(content(restored)) == 2 * IDS.size + 3
    assert [table.config for table in restored[0].tables()] == [
        table.config for table in stores[0].tables()
    ]


def test_any_arrow_reader_opens_a_table(tmp_path):
    (store,) = trained_stores(1)
    files = save([store], tmp_path / "c")
    with pa.memory_map(str(tmp_path / "c" / files[0].name)) as source:
        table = pa.ipc.open_file(source).read_all()
        names = ["bucket", "id", "embedding", "segment_0_norm", "updated_s"]
        assert table.column_names == names
        buckets = table.column("bucket").to_numpy()
        np.testing.assert_array_equal(buckets, routing.buckets_of(table.column("id").to_numpy()))
        assert table.num_rows == IDS.size == files[0].rows


def test_a_reader_learns_which_floats_of_the_state_are_what(tmp_path):
    """The moments of adam beside the accumulators of ftrl, without a word of Megalith's code."""
    segments = (
        Segment(1, optimizer=Ftrl(0.5, initial_accumulator_value=0.25)),
        Segment(2, optimizer=Adam(0.1)),
    )
    store = Store(0)
    store.adopt(table=EmbeddingTable(TableConfig("t", segments)))
    store.tables()[0].apply_gradients(np.array([7]), np.array([[2, 10, 1]], np.float32))
    files = save([store], tmp_path / "c")
    with pa.memory_map(str(tmp_path / "c" / files[0].name)) as source:
        table = pa.ipc.open_file(source).read_all()
        fields = json.loads(table.schema.metadata[b"state_fields"])
        state = {}
        for about in fields:
            column = f"segment_{about['segment']}_{about['name']}"
            (state[about["segment"], about["name"]],) = table.column(column).to_pylist()

    assert list(state) == [
        (0, "norm"),
        (0, "zero"),
        (1, "m"),
        (1, "v"),
        (1, "beta1_power"),
        (1, "beta2_power"),
    ]
    assert state[0, "norm"] == [4.25]
    np.testing.assert_allclose(state[1, "m"], [1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(
        [*state[1, "beta1_power"], *state[1, "beta2_power"]], [0.81, 0.9801], rtol=1e-6
    )
    assert [len(values) for values in state.values()] == [about["width"] for about in fields]


def test_a_shard_that_cannot_be_written_whole_leaves_nothing(tmp_path):
    (store,) = trained_stores(1)
    (tmp_path / "of-another-save.arrow").touch()
    (tmp_path / "variables-ps-00000-of-00001-s.arrow").mkdir()  # so that the last file fails
    with pytest.raises(OSError, match="variables-ps-00000-of-00001-s"):
        save_shard(store, tmp_path, "s", 0, 1)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"of-another-save.arrow"}


def test_a_shard_whose_directory_is_removed_meanwhile_is_a_failed_save_and_leaves_nothing(
    tmp_path, monkeypatch
):
    """The save has timed out, and the controller discards it while the last file is written."""
    (store,) = trained_stores(1)
    (tmp_path / "c").mkdir()
    read = store.variables

    def too_late():
        shutil.rmtree(tmp_path / "c")
        (tmp_path / "c").mkdir()  # another save's, say
        return read()

    monkeypatch.setattr(store, "variables", too_late)
    with pytest.raises(SaveFailed, match="the save was given up"):
        save_shard(store, tmp_path / "c", "s", 0, 1)
    assert list((tmp_path / "c").iterdir()) == []


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_remove])
def test_a_damaged_file_is_refused_by_name_and_nothing_is_restored(tmp_path, damage):
    files = save(trained_stores(1), tmp_path / "c")
    damage(tmp_path / "c" / files[1].name)
    store = Store(0)
    with pytest.raises(CheckpointDamaged, match=files[1].name):
        restore_shard(store, tmp_path / "c", routing.even_owners(1), 0)
    assert store.tables() == []
    assert store.variables() == []


def test_without_a_manifest_there_is_no_checkpoint(tmp_path):
    save(trained_stores(1), tmp_path / "c")
    (tmp_path / "c" / MANIFEST).unlink()
    with pytest.raises(CheckpointNotFound, match="not a complete checkpoint"):
        restore(tmp_path / "c", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has format None"),
        ('{"format": 99}', "has format 99"),
        ('{"format": 1}', "lacks"),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused(tmp_path, text, message):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(CheckpointDamaged, match=message):
        manifest.read(tmp_path)


def test_every_byte_of_a_manifest_counts(tmp_path):
    """Also one that is still JSON with all fields: another time, another step, a blank."""
    save(trained_stores(1), tmp_path / "c")
    path = tmp_path / "c" / MANIFEST
    whole = path.read_bytes()
    manifest.read(tmp_path / "c")

    for offset in range(len(whole)):
        flipped = bytearray(whole)
        flipped[offset] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(CheckpointDamaged, match=MANIFEST):
            manifest.read(tmp_path / "c")

    path.write_bytes(whole.replace(b'"step": 7', b'"step":  7'))
    with pytest.raises(CheckpointDamaged, match="was changed after it was written"):
        manifest.read(tmp_path / "c")


def test_an_optimizer_of_a_newer_version_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointDamaged, match="unknown kind 'Nonesuch'"):
        schema_json.from_json({"kind": "Segment", "dim": 1, "optimizer": {"kind": "Nonesuch"}})


CONFIG = TableConfig(
    "everything",
    (
        Segment(1, Ones(), Ftrl(beta=1.0), Fp16(), PolynomialDecay(0.1, 100)),
        Segment(4, RandomUniform(-1, 1), StochasticRoundingFloat16(Adam(0.05)), OneBit()),
    ),
    expire_days=9,
    expire_days_by_slot={7: 3},
    memory_budget_bytes=1 << 20,
    max_expire_share=0.5,
    seed=4,
    admission=AdmissionConfig(
        kind=FilterKind.PLAIN, default_threshold=1, threshold_by_slot={2: 20}, capacity=1000
    ),
    features=("user", "item"),
)


def test_every_setting_of_a_table_is_restored(tmp_path):
    store = Store(0)
    store.adopt(table=EmbeddingTable(CONFIG))
    save([store], tmp_path / "c")
    assert restore(tmp_path / "c", 1)[0].tables()[0].config == CONFIG


def rewrite_manifest(directory, change):
    path = directory / MANIFEST
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["table", "variables"])
def test_a_file_with_a_row_less_than_the_manifest_says_is_refused_with_the_numbers(tmp_path, kind):
    files = save(trained_stores(1), tmp_path / "c")
    file = next(file for file in files if file.kind == kind)

    def one_more(content):
        item = next(item for item in content["files"] if item["name"] == file.name)
        item["rows"] += 1

    forget_blocks(tmp_path / "c")
    rewrite_manifest(tmp_path / "c", one_more)
    numbers = f"{file.name} has {file.rows} (rows|variables), the manifest says {file.rows + 1}"
    with pytest.raises(CheckpointDamaged, match=numbers):
        restore(tmp_path / "c", 1)


def test_an_id_in_two_files_is_refused_with_the_numbers(tmp_path):
    stores = [Store(0), Store(1)]
    for store, keys in zip(stores, ([1, 2, 3], [3, 4, 5]), strict=True):
        table = EmbeddingTable(TableConfig("t", (Segment(1),)))
        table.assign(np.array(keys), np.ones((len(keys), 1), np.float32))
        store.adopt(table=table)
    save(stores, tmp_path / "c")
    with pytest.raises(
        CheckpointDamaged, match=r"rows for this ps, . are new and 0 expired: 1 ids are in another"
    ):
        restore(tmp_path / "c", 1)


def test_rows_beyond_a_memory_budget_are_refused_with_the_numbers_unless_asked_for(tmp_path):
    """Two servers with 1 MB each had room for rows that one of them has not."""
    config = TableConfig("t", (Segment(8, Ones()),), memory_budget_bytes=1 << 20)
    stores = [Store(0), Store(1)]
    spread = np.concatenate([IDS + 1, IDS])
    owner = routing.even_owners(2)[routing.buckets_of(spread)]
    for index, store in enumerate(stores):
        table = EmbeddingTable(config)
        table.assign(
            spread[owner == index], np.ones((np.count_nonzero(owner == index), 8), np.float32)
        )
        assert table.stats().refused == 0
        store.adopt(table=table)
    save(stores, tmp_path / "c")
    with pytest.raises(
        LimitExceeded, match=r"table t: \d+ of the \d+ rows .*memory_budget_bytes of 1048576"
    ) as refused:
        restore(tmp_path / "c", 1)
    assert "--restore-over-budget" in str(refused.value)
    store = Store(0)
    restored = restore_shard(store, tmp_path / "c", routing.even_owners(1), 0, over_budget=True)
    (table,) = store.tables()
    assert restored.rows == len(table) == spread.size
    assert table.config == config
    assert table.assign(np.array([17]), np.ones((1, 8), np.float32)).refused == 1


def test_a_table_that_is_begun_anew_without_its_budget_is_alone_in_memory(tmp_path, monkeypatch):
    config = TableConfig("t", (Segment(2, Ones()),), memory_budget_bytes=64 << 20)
    table = EmbeddingTable(config)
    table.assign(np.arange(100_000), np.ones((100_000, 2), np.float32))
    table.reconfigure(replace(config, memory_budget_bytes=1 << 20))
    store = Store(0)
    store.adopt(table=table)
    save([store], tmp_path / "c")
    made = []
    alive = []
    load_into = row_loading._Loading._load_into

    def make(config):
        table = EmbeddingTable(config)
        made.append(weakref.ref(table))
        return table

    def load(*arguments):
        alive.append(sum(reference() is not None for reference in made))
        return load_into(*arguments)

    monkeypatch.setattr(row_loading, "EmbeddingTable", make)
    monkeypatch.setattr(row_loading._Loading, "_load_into", load)
    assert restore(tmp_path / "c", 1)
    assert (len(made), alive) == (2, [1, 1])


@pytest.mark.parametrize("order", ["random", "sorted", "clustered"])
def test_a_server_takes_back_what_it_held_when_its_memory_budget_was_lowered(
    tmp_path, caplog, order
):
    """300,000 rows on two servers.

    The budget is set below what they take, and one of them is replaced.
    """
    ids = at_size.ids_in(order, 300_000)
    config = TableConfig(
        "t", (Segment(2, Ones(), Sgd(1.0)),), expire_days=30, memory_budget_bytes=64 << 20
    )
    lowered = replace(config, memory_budget_bytes=1 << 20)
    owner = routing.even_owners(2)[routing.buckets_of(ids)]
    stores = [Store(0), Store(1)]
    for index, store in enumerate(stores):
        mine = ids[owner == index]
        table = EmbeddingTable(config)
        table.assign(mine[:1000], np.ones((1000, 2), np.float32), 1_700_000_000)
        table.assign(mine[1000:], np.full((mine.size - 1000, 2), 2, np.float32), 1_790_000_000)
        table.reconfigure(lowered)
        store.adopt(table=table)
    save(stores, tmp_path / "c")
    store = Store(1)
    restored = restore_shard(store, tmp_path / "c", routing.even_owners(2), 1)
    mine = ids[owner == 1]
    assert (restored.rows, restored.expired) == (mine.size - 1000, 1000)
    (table,) = store.tables()
    assert (table.lookup(mine[1000:]) == 2).all()
    assert (table.config, table.stats().expired) == (lowered, 1000)
    assert table.assign(ids[owner == 0][:1], np.ones((1, 2), np.float32)).refused == 1
    assert f"table t takes {table.nbytes} bytes, its memory budget is 1048576" in caplog.text
    with pytest.raises(LimitExceeded, match="--restore-over-budget"):
        restore(tmp_path / "c", 1)


def test_rows_whose_saved_state_is_not_finite_learn_again_and_are_counted(tmp_path, caplog):
    """Early versions let the state overflow. Such a row can get no update: after each it would not
    be finite."""
    config = TableConfig("t", (Segment(2, Ones(), Adagrad(0.5)),))
    old = EmbeddingTable(config)
    grads = np.ones((IDS.size, 2), np.float32)
    old.apply_gradients(IDS, grads)
    rows = old.dump(limit=IDS.size)
    rows.rows[::100, 2] = np.inf
    rows.rows[7, 0] = np.nan
    old.load(rows.ids, rows.rows, rows.times)
    store = Store(0)
    store.adopt(table=old)
    save([store], tmp_path / "c")
    (restored,) = restore(tmp_path / "c", 1)
    (table,) = restored.tables()
    before = table.lookup(rows.ids)
    np.testing.assert_array_equal(before, rows.rows[:, :2])
    spoiled, sound = rows.ids[::100].copy(), rows.ids[1:2]
    new = EmbeddingTable(config)
    new.assign(spoiled, before[::100].copy())
    for each in (table, new):
        each.apply_gradients(spoiled, grads[: spoiled.size])
    np.testing.assert_array_equal(table.lookup(spoiled), new.lookup(spoiled))
    assert (table.lookup(spoiled) < before[::100]).all()
    assert table.stats().nonfinite == 0
    np.testing.assert_array_equal(table.lookup_entry(sound).state, rows.rows[1:2, 2:])
    said = [record.getMessage() for record in caplog.records]
    assert any(
        "optimizer state is not finite, it begins anew: table=t rows=50 " in line for line in said
    )
    assert any("weights are not finite" in line and "table=t rows=1 " in line for line in said)


def test_a_file_that_is_cut_short_after_the_check_is_an_error_and_not_the_end_of_the_process(
    tmp_path, monkeypatch
):
    """Of a file without blocks: those are checked after they were read."""
    files = save(trained_stores(1), tmp_path / "c")
    forget_blocks(tmp_path / "c")
    verify = integrity.verify

    def verify_and_cut(directory, file, copy):
        verify(directory, file, copy)
        os.truncate(directory / file.name, file.bytes // 2)

    monkeypatch.setattr(integrity, "verify", verify_and_cut)
    with pytest.raises(
        CheckpointDamaged, match=r"table-0000-.* cannot be read as an Arrow file"
    ) as error:
        restore(tmp_path / "c", 1)
    assert files[0].name in str(error.value)


def test_a_ps_reads_only_the_files_that_have_rows_or_variables_of_its_own(tmp_path, monkeypatch):
    stores = trained_stores(2)
    for store in stores:
        store.route(routing.Routing(1, ("a", "b"), routing.even_owners(2)), is_initialized=True)
    files = save(stores, tmp_path / "c")
    forget_blocks(tmp_path / "c")
    verified = []
    verify = integrity.verify
    monkeypatch.setattr(
        integrity,
        "verify",
        lambda d, file, copy: (verified.append(file.name), verify(d, file, copy)),
    )
    restored = restore(tmp_path / "c", 2)
    assert sorted(verified) == sorted(
        file.name for file in files
    )  # each once, not once for each server
    assert content(restored) == content(stores)
    verified.clear()
    assert content(restore(tmp_path / "c", 3)) == content(stores)
    assert (
        len(verified) == 8 + 6
    )  # the middle one of three reads the rows of both; all read all variables


def test_a_manifest_of_version_1_which_does_not_name_buckets_is_restored(tmp_path):
    stores = trained_stores(2)
    save(stores, tmp_path / "c")

    def as_version_1(content):
        content["format"] = 1
        for item in content["files"]:
            del item["buckets"]

    rewrite_manifest(tmp_path / "c", as_version_1)
    assert content(restore(tmp_path / "c", 3)) == content(stores)


@pytest.mark.parametrize("owned", [[], [0], [1023], range(1024), [0, 1, 5, 6, 7, 1023]])
def test_buckets_are_read_from_a_manifest_as_they_were_written(owned):
    buckets = np.zeros(1024, np.bool_)
    buckets[list(owned)] = True
    file = manifest.ShardFile("f", "table", "t", 1, 1, "", arrow_files.ranges_of(buckets))
    np.testing.assert_array_equal(arrow_files.buckets_of(file), buckets)
    assert file.buckets != ""


def test_tables_with_odd_or_similar_names_get_files_of_their_own(tmp_path):
    names = sorted(["a/b:ü ../c", "a-b-- ..-c", "variables", "user id", "user-id", "x" * 300])
    store = Store(0)
    for name in names:
        table = EmbeddingTable(TableConfig(name, (Segment(1, optimizer=Sgd(1.0)),)))
        table.apply_gradients(np.array([len(name)]), np.ones((1, 1), np.float32))
        store.adopt(table=table)
    store.adopt(variable=Variable(VariableConfig("v", np.ones(1, np.float32))))
    files = save([store], tmp_path / "c")
    others = ["variables-ps-00000-of-00001-s.arrow", "applied-ps-00000-of-00001-s.arrow"]
    assert len({file.name for file in files}) == len(names) + len(others)
    (restored,) = restore(tmp_path / "c", 1)
    assert [table.config.name for table in restored.tables()] == names
    assert [table.dump().ids.tolist() for table in restored.tables()] == [
        [len(name)] for name in names
    ]


@pytest.mark.golden("MultiTypeHashTableTest.test_save_restore")
def test_tables_that_only_model_or_checkpoint_has_do_no_harm(tmp_path):
    """A table that the model does not ask for does no harm.

    One that the checkpoint does not have starts empty.
    """
    store = Store(0)
    for name in ("old", "kept"):
        table = EmbeddingTable(TableConfig(name, (Segment(1, optimizer=Sgd(1.0)),)))
        table.assign(np.array([1]), np.ones((1, 1), np.float32))
        store.adopt(table=table)
    save([store], tmp_path / "c")
    (restored,) = restore(tmp_path / "c", 1)
    restored.route(routing.Routing(1, ("a",), routing.even_owners(1)), is_initialized=True)
    restored.create_tables(
        1, [TableConfig(name, (Segment(1, optimizer=Sgd(1.0)),)) for name in ("kept", "new")]
    )
    rows, _ = restored.pull(1, [(name, np.array([1])) for name in ("kept", "new", "old")], [])
    assert [row.tolist() for row in rows] == [[[1]], [[0]], [[1]]]
