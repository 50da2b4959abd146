"""Rows of Monolith's files come back from a restore: values, optimizer state and times.

The files are written by `support.monolith_files` with protobuf's own library.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.monolith.importing import import_tables
from megalith.checkpoint.monolith.record_files import RecordFile
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.storage.preparation import prepared
from megalith.errors import CheckpointDamaged, CheckpointNotFound, InvalidRequest, MegalithError
from megalith.kernels import crc32c
from megalith.ps.store.store import Store
from megalith.wire import routing
from support import at_size, object_stores
from support import monolith_files as files

MD5 = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def assets(tmp_path):
    return tmp_path / "monolith" / "model.ckpt-120.assets"


def restored(path, num_ps=2):
    """Rows by table and id: embedding, state and time."""
    found = {}
    for index in range(num_ps):
        store = Store(index)
        restore_shard(store, path, routing.even_owners(num_ps), index)
        for table in store.tables():
            part = table.dump(limit=10**6)
            rows = found.setdefault(table.config.name, {})
            for number, row, time_s in zip(part.ids, part.rows, part.times, strict=True):
                rows[int(number)] = ([float(value) for value in row], int(time_s))

    return found


def imported(assets, tmp_path, **options):
    report = import_tables(assets, tmp_path / "model", **options)
    path = catalog.latest(tmp_path / "model")
    assert str(path) == report.path
    assert verify(path).problems == []
    return report, path


STATES = {
    "adagrad": ({"norm": [3.0, 4.0]}, [3, 4]),
    "sgd": ({}, []),
    "ftrl": ({"zero": [5.0, 6.0], "norm": [3.0, 4.0]}, [3, 4, 5, 6]),
    "dynamic_wd_adagrad": (
        {"norm": [3.0, 4.0], "last_update_step": 5 + (7 << 24)},
        [3, 4, 7, 5],
    ),
    "adadelta": ({"accum": [3.0, 4.0], "accum_update": [5.0, 6.0]}, [3, 4, 5, 6]),
    "adam": (
        {"m": [3.0, 4.0], "v": [5.0, 6.0], "beta1_power": 0.5, "beta2_power": 0.25},
        [3, 4, 5, 6, 0.5, 0.25],
    ),
    "amsgrad": (
        {
            "m": [3.0, 4.0],
            "v": [5.0, 6.0],
            "vhat": [7.0, 8.0],
            "beta1_power": 0.5,
            "beta2_power": 0.25,
        },
        [3, 4, 5, 6, 7, 8, 0.5, 0.25],
    ),
    "momentum": ({"n": [3.0, 4.0]}, [3, 4]),
    "rmsprop": ({"n": [3.0, 4.0]}, [3, 4]),
    "rmspropv2": ({"n": [3.0, 4.0]}, [3, 4]),
    "group_ftrl": ({"zero": [5.0, 6.0], "norm": [3.0, 4.0]}, [3, 4, 5, 6]),
    "group_adagrad": ({"grad_square_sum": 9.0}, [9]),
}


@pytest.mark.parametrize("optimizer", STATES)
def test_the_state_of_every_optimizer_comes_back(assets, tmp_path, optimizer):
    state, expected = STATES[optimizer]
    entry = files.entry(-7, [1.0, 2.0], [(optimizer, state)], time_s=1234)
    files.write_table(assets, MD5, [files.records([entry])])
    report, path = imported(assets, tmp_path)
    assert report.step == 120
    assert report.tables[0].row_layout == f"2:{optimizer}"
    assert restored(path) == {MD5: {-7: ([1, 2, *expected], 1234)}}


def test_segments_of_different_optimizers_are_told_apart(assets, tmp_path):
    states = [
        ("ftrl", {"zero": [5.0], "norm": [3.0]}),
        ("sgd", {}),
        ("batch_softmax", {"global_step": 77}),
        ("adam", {"m": [1.0] * 3, "v": [2.0] * 3, "beta1_power": 0.5, "beta2_power": 0.25}),
    ]
    values = [float(number) for number in range(7)]
    entry = files.entry(1 << 48, values, states, time_s=99)
    files.write_table(assets, MD5, [files.records([entry])])
    report, path = imported(assets, tmp_path)
    assert report.tables[0].row_layout == "1:ftrl,2:sgd,1:batch_softmax,3:adam"
    state = [3, 5, 0, 77, 1, 1, 1, 2, 2, 2, 0.5, 0.25]
    assert restored(path)[MD5] == {1 << 48: ([*values, *state], 99)}


def test_widths_that_the_files_do_not_show_are_asked_for(assets, tmp_path):
    """sgd keeps no state, so two segments of it may have any widths; moving_average is not even
    named."""
    states = [("sgd", {}), ("sgd", {}), ("adagrad", {"norm": [9.0]})]
    entry = files.entry(1, [1.0, 2.0, 3.0, 4.0, 5.0], states)
    files.write_table(assets, "item", [files.records([entry])])
    with pytest.raises(InvalidRequest, match=r"\?:sgd, \?:sgd, 1:adagrad.*--segments item="):
        import_tables(assets, tmp_path / "model")

    assert list((tmp_path / "model").iterdir()) == []
    segments = {"item": "1:sgd,1:sgd,1:adagrad,2:moving_average"}
    _, path = imported(assets, tmp_path, segments=segments)
    assert restored(path)["item"][1][0] == [1, 2, 3, 4, 5, 9]


def test_a_wrapped_optimizer_is_written_as_people_read_it(assets, tmp_path):
    entry = files.entry(1, [1.0], [("adagrad", {"norm": [9.0]})])
    files.write_table(assets, "item", [files.records([entry])])
    layout = "1:stochastic_rounding_float16(adagrad)"
    report, path = imported(assets, tmp_path, segments={"item": layout})
    assert report.tables[0].row_layout == layout
    assert restored(path)["item"][1][0] == [1, 9]


@pytest.mark.parametrize(
    ("text", "message"),
    [("16", "16"), ("x:adagrad", "like 16:adagrad"), ("2:lion", "no optimizer 'lion'")],
)
def test_segments_that_make_no_sense_are_refused(assets, tmp_path, text, message):
    files.write_table(assets, "item", [files.records([files.entry(1, [1.0])])])
    with pytest.raises(InvalidRequest, match=message):
        import_tables(assets, tmp_path / "model", segments={"item": text})


def test_many_tables_in_snappy_files_of_two_servers_are_read(assets, tmp_path):
    def some(first, count, width):
        return files.records(
            files.entry(number, [float(number)] * width, [("adagrad", {"norm": [1.0] * width})], 5)
            for number in range(first, first + count)
        )

    shards = [
        [("a", 3, some(0, 3, 1)), ("empty", 0, b""), ("b", 2, some(0, 2, 2))],
        [("a", 1, some(10, 1, 1)), ("empty", 0, b""), ("b", 0, b"")],
    ]
    files.write_tables(assets, shards, ps=0)
    files.write_tables(assets, [[("a", 2, some(20, 2, 1)), ("b", 1, some(20, 1, 2))]], ps=1)
    report, path = imported(assets, tmp_path)
    assert {table.name: table.rows for table in report.tables} == {"a": 6, "b": 3}
    rows = restored(path, num_ps=3)
    assert rows["a"] == {n: ([n, 1], 5) for n in (0, 1, 2, 10, 20, 21)}
    assert rows["b"] == {n: ([n, n, 1, 1], 5) for n in (0, 1, 20)}
    assert manifest.read(path).num_ps == 2
    assert manifest.read(path).save_id  # so that increments can go on from it


def test_tables_can_be_given_other_names(assets, tmp_path):
    entry = files.entry(1, [1.0], [("adagrad", {"norm": [9.0]})])
    files.write_table(assets, MD5, [files.records([entry])])
    _, path = imported(assets, tmp_path, names={MD5: "item"})
    assert list(restored(path)) == ["item"]

    with pytest.raises(InvalidRequest, match="no table 'itme'"):
        import_tables(assets, tmp_path / "other", names={"itme": "item"})


def test_two_tables_of_one_new_name_are_refused(assets, tmp_path):
    """Otherwise the rows of one would take the places of the other's."""
    for name, value in (("item", 1.0), ("user", 2.0)):
        entry = files.entry(1, [value], [("adagrad", {"norm": [9.0]})])
        files.write_table(assets, name, [files.records([entry])])

    with pytest.raises(InvalidRequest, match="'item' and 'user' would both be called 'item'"):
        import_tables(assets, tmp_path / "model", names={"user": "item"})

    assert list((tmp_path / "model").iterdir()) == []
    swapped = {"user": "item", "item": "user"}
    _, path = imported(assets, tmp_path, names=swapped)
    rows = restored(path)
    assert (rows["item"][1][0], rows["user"][1][0]) == ([2, 9], [1, 9])


def test_tables_without_any_entry_are_refused(assets, tmp_path):
    files.write_table(assets, "item", [files.records([])])
    with pytest.raises(InvalidRequest, match="have no entries"):
        import_tables(assets, tmp_path / "model")

    assert list((tmp_path / "model").iterdir()) == []


def test_a_time_in_the_future_does_not_expire_the_other_rows(assets, tmp_path):
    adagrad = [("adagrad", {"norm": [1.0]})]
    now_s = int(time.time())
    entries = [
        files.entry(1, [1.0], adagrad, now_s),
        files.entry(2, [1.0], adagrad, now_s + 2 * 86400),
        files.entry(3, [1.0], adagrad, 2**32 - 1),
    ]
    files.write_table(assets, "t", [files.records(entries)])
    report, path = imported(assets, tmp_path)
    assert report.tables[0].undated == 2
    rows = restored(path)["t"]
    assert {number: time_s for number, (_, time_s) in rows.items()} == dict.fromkeys(rows, now_s)
    assert set(rows) == {1, 2, 3}


def packed_floats(number, values):
    data = np.array(values, "<f4").tobytes()
    return bytes([number << 3 | 2, len(data)]) + data


def test_packed_floats_and_unknown_fields_are_read_too(assets, tmp_path):
    entry = files.entry(5, [], [("adagrad", {"norm": [9.0, 8.0]})], 7)
    unknown = bytes([15 << 3 | 2, 3]) + b"abc" + bytes([14 << 3 | 0, 0xFF, 1])
    files.write_table(assets, "t", [files.records([unknown + entry + packed_floats(2, [1, 2])])])
    _, path = imported(assets, tmp_path, segments={"t": "2:adagrad"})
    assert restored(path)["t"] == {5: ([1, 2, 9, 8], 7)}


def test_what_cannot_be_imported_is_counted_by_its_reason(assets, tmp_path):
    adagrad = [("adagrad", {"norm": [1.0, 1.0]})]
    good = files.entry(1, [1.0, 2.0], adagrad, 10)
    entries = [
        good,
        files.entry(2, [1.0, 2.0], adagrad, 10),
        files.entry(2, [3.0, 4.0], adagrad, 11),  # once more: the last counts
        files.entry(3, [1.0, 2.0, 3.0], adagrad),  # too wide
        files.entry(4, [1.0, 2.0], [("sgd", {})]),  # another optimizer
        files.entry(5, [np.nan, 2.0], adagrad),
        files.entry(6, [1.0, 2.0], [("adagrad", {"norm": [np.inf, 1.0]})]),
        files.entry(7, [5.0, 6.0], time_s=12),  # without a state
        files.entry(8, [1.0, 2.0], adagrad, -5),  # with a time that is none
        files.EntryDump(num=[1.0, 2.0]).SerializeToString(),  # without an id
        good[:-3],
        b"",
    ]
    files.write_table(assets, "t", [files.records(entries)])
    (assets / "hash_filter_0-00000-of-00001").write_bytes(b"")
    (assets.parent / "model.ckpt-120.index").write_bytes(b"")
    report, path = imported(assets, tmp_path)
    (table,) = report.tables
    assert (table.entries, table.rows, table.left_out) == (12, 4, 8)
    assert (table.repeated, table.malformed, table.other_layout) == (1, 3, 2)
    assert (table.not_finite, table.begun_anew, table.undated) == (2, 1, 1)
    assert report.left_out == {"admission filters": 1, "dense variables": 1}
    rows = restored(path)["t"]
    assert rows[1] == ([1, 2, 1, 1], 10)
    assert rows[2] == ([3, 4, 1, 1], 11)
    np.testing.assert_allclose(rows[7][0], [5, 6, 0.1, 0.1])
    # A row without a time gets the newest of its table, as every restore gives it.
    assert rows[8] == ([1, 2, 1, 1], 12)
    assert set(rows) == {1, 2, 7, 8}


def test_a_table_of_which_nothing_fits_is_an_error_and_leaves_nothing(assets, tmp_path):
    entries = [files.entry(number, [1.0], [("sgd", {})]) for number in range(5)]
    files.write_table(assets, "t", [files.records(entries)])
    with pytest.raises(InvalidRequest, match=r"none of its 5 entries .* 5 have another layout"):
        import_tables(assets, tmp_path / "model", segments={"t": "1:adagrad"})

    assert list((tmp_path / "model").iterdir()) == []


# --- at size ---


def many_records(ids, values, norms, times):
    """Records of equal length, all at once: an id, one float at a time, adagrad, a 5-byte time."""
    count, dim = values.shape
    columns = [np.full((count, 1), 0x09, np.uint8), ids.astype("<i8").view(np.uint8).reshape(-1, 8)]
    for matrix, tag in ((values, 0x15), (norms, 0x0D)):
        floats = np.empty((count, dim, 5), np.uint8)
        floats[:, :, 0] = tag
        floats[:, :, 1:] = matrix.astype("<f4").view(np.uint8).reshape(count, dim, 4)
        columns.append(floats.reshape(count, 5 * dim))

    inner = 5 * dim
    heads = bytes([0x1A, inner + 4, 0x0A, inner + 2, 0x0A, inner])
    assert inner + 4 < 128
    columns.insert(3, np.tile(np.frombuffer(heads, np.uint8), (count, 1)))
    time = np.empty((count, 6), np.uint8)
    time[:, 0] = 0x20
    for place in range(5):
        time[:, place + 1] = (times >> 7 * place & 0x7F) | (0x80 if place < 4 else 0)

    return files.records_of(np.concatenate([*columns, time], axis=1))


def test_the_records_at_size_are_what_protobuf_writes():
    values = np.array([[1.5, -2.5]], np.float32)
    expected = files.entry(-9, [1.5, -2.5], [("adagrad", {"norm": [3.0, 4.0]})], 1_790_000_000)
    data = many_records(
        np.array([-9]), values, np.array([[3, 4]], np.float32), np.array([1_790_000_000])
    )
    assert data == files.records([expected])


@pytest.mark.parametrize(("order", "is_multi"), [("random", True), ("sorted", False)])
def test_300000_rows_come_back_value_for_value(assets, tmp_path, order, is_multi):
    ids = at_size.ids_in(order, 300_000)
    rng = np.random.default_rng(1)
    values = rng.standard_normal((ids.size, 8)).astype(np.float32)
    norms = rng.uniform(0.1, 9, (ids.size, 8)).astype(np.float32)
    times = rng.integers(1_700_000_000, 1_790_000_000, ids.size)
    halves = np.array_split(np.arange(ids.size), 2)
    shards = [many_records(ids[h], values[h], norms[h], times[h]) for h in halves]
    if is_multi:
        tables = zip(halves, shards, strict=True)
        files.write_tables(assets, [[("t", half.size, data)] for half, data in tables])
    else:
        files.write_table(assets, "t", shards)

    report, path = imported(assets, tmp_path, num_ps=2)
    assert report.tables[0].rows == ids.size
    order = np.argsort(ids)
    parts = []
    for index in range(3):
        store = Store(index)
        restore_shard(store, path, routing.even_owners(3), index)
        parts.append(store.tables()[0].dump(limit=ids.size))

    found_ids = np.concatenate([part.ids for part in parts])
    found_order = np.argsort(found_ids)
    np.testing.assert_array_equal(found_ids[found_order], ids[order])
    rows = np.concatenate([part.rows for part in parts])[found_order]
    np.testing.assert_array_equal(rows[:, :8], values[order])
    np.testing.assert_array_equal(rows[:, 8:], norms[order])
    found_times = np.concatenate([part.times for part in parts])[found_order]
    np.testing.assert_array_equal(found_times, times[order])


# --- which files ---


def one_entry():
    return files.records([files.entry(1, [1.0], [("adagrad", {"norm": [9.0]})])])


def test_the_newest_checkpoint_of_a_model_directory_is_taken(tmp_path):
    model = tmp_path / "monolith"
    for step in (100, 200):
        files.write_table(model / f"model.ckpt-{step}.assets", "t", [one_entry()])

    with pytest.raises(CheckpointNotFound, match="several folders of table files"):
        import_tables(model, tmp_path / "model")

    (model / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-100"\n')
    assert import_tables(model, tmp_path / "model").step == 100
    assert import_tables(model, tmp_path / "other", step=7).step == 7


def test_a_folder_without_table_files_is_an_error(tmp_path):
    with pytest.raises(CheckpointNotFound, match="is no directory"):
        import_tables(tmp_path / "nothing", tmp_path / "model")

    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFound, match="no table files"):
        import_tables(tmp_path / "empty", tmp_path / "model")


def test_an_incomplete_set_of_files_is_refused_by_name(assets, tmp_path):
    files.write_table(assets, "t", [one_entry()] * 3)
    (assets / "MonolithHashTable_t_0-00001-of-00003").unlink()
    (assets / "MonolithHashTable_t_0-tmp-123-00001-of-00003").write_bytes(b"")
    with pytest.raises(CheckpointDamaged, match=r"MonolithHashTable_t_0-\*: of 3 files \[1\] are"):
        import_tables(assets, tmp_path / "model")

    (assets / "MonolithHashTable_t_0-00001-of-00002").write_bytes(b"")
    with pytest.raises(CheckpointDamaged, match=r"sets of \[2, 3\]"):
        import_tables(assets, tmp_path / "model")


def test_a_directory_with_checkpoints_is_not_imported_into(assets, tmp_path):
    files.write_table(assets, "t", [one_entry()])
    imported(assets, tmp_path)
    with pytest.raises(InvalidRequest, match="has checkpoints already"):
        import_tables(assets, tmp_path / "model")


@pytest.fixture(params=["path", "s3"])
def model_dir(request, tmp_path):
    if request.param == "path":
        yield tmp_path / "model"
        return

    with object_stores.s3_server() as environment, object_stores.set_environment(environment):
        yield object_stores.new_folder("s3")


def kill_in(function, source, model_dir):
    """Import in another process, which dies where `function` is called: nothing is tidied."""
    program = f"""
import os
from pathlib import Path
from unittest import mock
from megalith.checkpoint.monolith.importing import import_tables
from megalith.checkpoint.storage.location import locate
with mock.patch("{function}", lambda *_: os._exit(9)):
    import_tables(Path("{source}"), locate("{model_dir}"))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 9


@pytest.mark.parametrize("moment", ["layout.manifest.write", "directory.catalog.listing.write"])
def test_a_killed_import_is_run_again_and_what_it_left_goes(assets, model_dir, moment):
    files.write_table(assets, "t", [one_entry()])
    kill_in(f"megalith.checkpoint.{moment}", assets, model_dir)
    assert catalog.latest(model_dir) is None
    (left,) = catalog.own_work_directories(model_dir)

    report = import_tables(assets, model_dir)
    assert report.removed == (str(left),)
    assert report.path == f"{model_dir}/model.ckpt-120"
    assert verify(catalog.latest(model_dir)).is_whole
    assert not catalog.own_work_directories(model_dir)


def test_the_save_of_a_job_is_not_taken_for_what_an_import_left(assets, model_dir):
    files.write_table(assets, "t", [one_entry()])
    model_dir = prepared(str(model_dir))
    saved = catalog.begin(model_dir, 0, "0a1b2c3d")
    if isinstance(saved, Path):
        assert import_tables(assets, model_dir).removed == ()
    else:
        with pytest.raises(InvalidRequest, match="has checkpoints already"):
            import_tables(assets, model_dir)

    assert catalog.own_work_directories(model_dir) == [saved]


# --- damaged files ---


def outcome(assets, model_dir):
    """The error of an import, or how many rows it brought."""
    try:
        return "", import_tables(assets, model_dir).tables[0].rows
    except MegalithError as error:
        return str(error), None


@pytest.mark.parametrize("is_multi", [False, True])
def test_a_changed_byte_or_a_cut_file_is_refused_by_name_and_leaves_nothing(
    assets, tmp_path, is_multi
):
    entries = [
        files.entry(number, [1.0, 2.0], [("adagrad", {"norm": [3.0, 4.0]})], number)
        for number in range(20)
    ]
    if is_multi:
        files.write_tables(assets, [[("t", 20, files.records(entries))]])
    else:
        files.write_table(assets, "t", [files.records(entries)])

    for path in sorted(assets.iterdir()):
        content = path.read_bytes()
        damaged = [content[:length] for length in range(1, len(content), 13)]
        for offset in range(0, len(content), 7):
            changed = bytearray(content)
            changed[offset] ^= 1 << offset % 8
            damaged.append(bytes(changed))

        for each in damaged:
            path.write_bytes(each)
            error, rows = outcome(assets, tmp_path / "model")
            if error:
                assert path.name.partition("-")[0] in error
            else:
                # A cut between two records of a single table cannot be seen: no count is written.
                assert not is_multi
                assert each == content[: len(each)]
                assert rows == len(each) / (len(content) / 20)
                shutil.rmtree(tmp_path / "model")

            left = list((tmp_path / "model").iterdir()) if (tmp_path / "model").exists() else []
            assert left == []

        path.write_bytes(content)


def test_the_checksum_is_the_published_one():
    data = np.frombuffer(b"123456789", np.uint8)
    assert files.crc32c(data[None])[0] == 0xE3069283


def test_records_longer_than_a_chunk_are_read(tmp_path):
    long = np.arange(20_000_000, dtype=np.int64).view(np.uint8)[: 20 << 20]
    size = np.frombuffer(np.uint64(long.size).tobytes(), np.uint8)
    # The checksum of 20 MiB byte by byte takes minutes: it is that of the file's own kernel.
    check = np.uint32(crc32c.masked_crc32c(long, 0, long.size, crc32c.TABLES)).tobytes()
    head = size.tobytes() + files.masked(files.crc32c(size[None])).tobytes()
    (tmp_path / "f").write_bytes(head + long.tobytes() + check + one_entry())
    file = RecordFile(tmp_path / "f")
    first = file.read()
    assert first.of(0) == long.tobytes()
    assert first.begins.size + (file.read() or first).begins.size >= 2
