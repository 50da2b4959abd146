"""What `verify` finds: any changed byte, any missing or swapped file, any row in a wrong place."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from megalith.checkpoint.format import MANIFEST, FileKind
from megalith.checkpoint.inspection import verification
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import CheckpointNotFound, TableConflict
from megalith.ps.store.store import Store
from megalith.schema import Segment, Sgd, Zeros
from megalith.wire import routing
from support import at_size, checkpoints

FIRST_RELEASE = Path(__file__).parents[3] / "fixtures" / "checkpoint-v1"
KINDS = (FileKind.TABLE, FileKind.FILTER, FileKind.VARIABLES)
IDS = np.arange(-20, 20) * 0x0123456789ABCDE


def small_stores():
    ones = np.ones((IDS.size, 3), np.float32)
    wide = np.full((IDS.size, 4), 2, np.float32)
    rows = [(checkpoints.ITEM, IDS, ones, 1234), (checkpoints.USER, IDS, wide, 1234)]
    return checkpoints.stores_with(rows, {"w": np.ones(4, np.float32)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small checkpoint with a file of each kind. Tests change copies of it."""
    return checkpoints.write(small_stores(), tmp_path_factory.mktemp("model"), 120)


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / whole.name))


def problems(directory):
    return [(problem.file, problem.what) for problem in verify(directory).problems]


def file_of(directory, kind, number=0):
    files = [file for file in manifest.read(directory).files if file.kind == kind]
    return files[number]


def test_a_checkpoint_as_it_was_written_is_whole(whole):
    found = verify(whole)
    assert found.problems == []
    assert found.is_whole
    assert (found.step, found.rows, found.unnamed) == (120, 2 * IDS.size, [])
    assert found.bytes == sum(path.stat().st_size for path in whole.glob("*.arrow"))
    assert {file.kind for file in manifest.read(whole).files} >= set(KINDS)


def test_a_checkpoint_of_the_first_release_is_whole():
    assert problems(FIRST_RELEASE) == []


@pytest.mark.parametrize("every", [101, pytest.param(3, marks=pytest.mark.long)])
def test_any_changed_byte_is_found_and_its_file_named(copy, every):
    """One bit of every so many bytes of all files."""
    for path in sorted(copy.iterdir()):
        content = path.read_bytes()
        for offset in range(0, len(content), every):
            changed = bytearray(content)
            changed[offset] ^= 1 << offset % 8
            path.write_bytes(changed)
            named = {file for file, _ in problems(copy)}
            assert named == {path.name}, offset

        path.write_bytes(content)

    assert problems(copy) == []


def test_a_file_cut_at_any_length_is_found_and_named(copy):
    for path in sorted(copy.iterdir()):
        content = path.read_bytes()
        for length in sorted({0, 1, len(content) - 1, *range(0, len(content), 101)}):
            path.write_bytes(content[:length])
            named = {file for file, _ in problems(copy)}
            assert named == {path.name}, length

        path.write_bytes(content)


def test_bytes_that_were_added_are_found(copy):
    file = file_of(copy, FileKind.TABLE)
    with open(copy / file.name, "ab") as content:
        content.write(b"!")

    assert problems(copy) == [
        (file.name, f"has {file.bytes + 1} bytes, the manifest says {file.bytes}")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named(copy, kind):
    file = file_of(copy, kind)
    (copy / file.name).unlink()
    assert problems(copy) == [(file.name, "is missing")]


def test_a_file_that_is_a_directory_is_named(copy):
    file = file_of(copy, FileKind.TABLE)
    (copy / file.name).unlink()
    (copy / file.name).mkdir()
    assert [name for name, _ in problems(copy)] == [file.name]


def test_two_swapped_shards_are_both_named(copy):
    first = file_of(copy, FileKind.TABLE, 0)
    second = file_of(copy, FileKind.TABLE, 2)
    (copy / first.name).rename(copy / "aside")
    (copy / second.name).rename(copy / first.name)
    (copy / "aside").rename(copy / second.name)
    assert sorted(name for name, _ in problems(copy)) == sorted([first.name, second.name])


def test_a_manifest_of_a_newer_version_says_which_versions_are_read(copy):
    content = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**content, "format": 99}))
    assert [name for name, _ in problems(copy)] == [MANIFEST]
    assert "format 99" in problems(copy)[0][1]


def test_a_folder_without_a_manifest_is_not_complete(copy):
    (copy / MANIFEST).unlink()
    ((file, what),) = problems(copy)
    assert file == MANIFEST
    assert "not a complete checkpoint" in what


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"model\.ckpt-9 is not there"):
        verify(tmp_path / "model.ckpt-9")


def test_files_that_no_manifest_names_are_said_and_do_no_harm(copy):
    (copy / "notes.txt").write_text("mine")
    found = verify(copy)
    assert found.is_whole
    assert found.unnamed == ["notes.txt"]


# --- content that is wrong although every checksum is right: a fault of whoever wrote it ---


def rewrite(directory, file, change=lambda columns: columns, metadata=None):
    """Write a file anew with changed columns, and the manifest to it, without blocks."""
    path = directory / file.name
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns = change(columns)
    fields = [table.schema.field(name) for name in columns]
    schema = pa.schema(fields, metadata or table.schema.metadata)
    batch = pa.record_batch(list(columns.values()), schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)

    sign(directory, file, rows=batch.num_rows, blocks=())


def sign(directory, file, **changes):
    """Make the manifest say of a file what is true now, and `changes`."""
    path = directory / file.name
    true = replace(file, bytes=path.stat().st_size, sha256=manifest.sha256_of(path), **changes)
    content = manifest.read(directory)
    files = tuple(true if each.name == file.name else each for each in content.files)
    manifest.write(directory, replace(content, files=files))


def test_a_row_with_a_wrong_bucket_is_found(copy):
    file = file_of(copy, FileKind.TABLE)

    def change(columns):
        buckets = columns["bucket"].to_numpy().copy()
        buckets[0] ^= 1
        return {**columns, "bucket": pa.array(buckets)}

    rewrite(copy, file, change)
    ((name, what),) = problems(copy)
    assert name == file.name
    assert what.startswith("has 1 row with another bucket than that of the id: ")


def test_rows_of_a_bucket_that_the_manifest_does_not_give_the_file_are_found(copy):
    file = file_of(copy, FileKind.TABLE)
    sign(copy, file, buckets="0-0")
    ((name, what),) = problems(copy)
    assert name == file.name
    assert "the manifest says 0-0" in what


def test_another_number_of_rows_than_the_manifest_says_is_found(copy):
    file = file_of(copy, FileKind.TABLE)
    sign(copy, file, rows=file.rows + 1, blocks=())
    assert problems(copy) == [
        (file.name, f"has {file.rows} rows, the manifest says {file.rows + 1}")
    ]


def test_a_block_of_other_buckets_than_the_manifest_says_is_found(copy):
    file = file_of(copy, FileKind.TABLE)
    head, rows, end = file.blocks
    named = rows.split(" ")[0]
    first, last = named.split("-")
    sign(copy, file, blocks=(head, rows.replace(named, f"{first}-{int(last) + 1}"), end))
    assert problems(copy) == [
        (
            file.name,
            f"has rows of the buckets {named} in a block of the buckets {first}-{int(last) + 1}",
        )
    ]


def other_digit(digit):
    return f"{int(digit, 16) ^ 1:x}"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda head, rows, end: (head,), "its blocks 0 rows"),
        (lambda head, rows, end: (rows, end), "lacks a block of .* at byte 0"),
        (lambda head, rows, end: (head, rows[:-1] + "x", end), "gives .* a block "),
        (lambda head, rows, end: (head, rows[:-1] + other_digit(rows[-1]), end), "the CRC-32"),
    ],
)
def test_blocks_that_do_not_fit_the_file_are_found(copy, change, what):
    file = file_of(copy, FileKind.TABLE)
    sign(copy, file, blocks=change(*file.blocks))
    found = problems(copy)
    assert found[0][0] == file.name
    assert re.search(what, found[0][1])


@pytest.mark.parametrize("column", ["embedding", "segment_0_norm"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_found(copy, column, value):
    file = file_of(copy, FileKind.TABLE)

    def change(columns):
        values = columns[column].flatten().to_numpy().copy()
        values[-1] = value
        lists = pa.FixedSizeListArray.from_arrays(pa.array(values), columns[column].type.list_size)
        return {**columns, column: lists}

    rewrite(copy, file, change)
    assert problems(copy) == [(file.name, "has 1 row with NaN or infinity")]


def test_an_id_that_a_table_has_twice_is_found_in_both_files(copy):
    first = file_of(copy, FileKind.TABLE, 0)
    other = next(
        file
        for file in manifest.read(copy).files
        if file.kind == FileKind.TABLE and file.table == first.table and file != first
    )
    shutil.copyfile(copy / first.name, copy / other.name)
    sign(copy, other, rows=first.rows, buckets=first.buckets, blocks=first.blocks)
    found = problems(copy)
    assert [name for name, _ in found] == [first.name, other.name]
    assert f"table {first.table} has twice, {first.rows} in all" in found[0][1]


def test_ids_that_occur_twice_are_found_in_several_passes_too(copy, monkeypatch):
    monkeypatch.setattr(verification, "_IDS_AT_ONCE", 7)
    assert problems(copy) == []
    test_an_id_that_a_table_has_twice_is_found_in_both_files(copy)


def test_a_file_with_the_rows_of_another_table_is_found(copy):
    file = file_of(copy, FileKind.TABLE)
    sign(copy, file, table="user id")
    assert (file.name, "has rows of table 'item', the manifest says 'user id'") in problems(copy)


def test_a_table_in_two_layouts_is_found(tmp_path):
    """Every file of it is what was written, and no server can load both."""
    stores = small_stores()
    other = replace(checkpoints.USER, segments=(Segment(4, Zeros(), Sgd(0.5)),))
    table = EmbeddingTable(other)
    (of_it,) = [each for each in stores[1].tables() if each.config.name == other.name]
    ids = of_it.dump().ids
    table.assign(ids, np.ones((ids.size, 4), np.float32), req_time_s=1234)
    stores[1].adopt(table=table)
    folder = checkpoints.write(stores, tmp_path, 120)
    ((name, what),) = problems(folder)
    assert "ps-00001" in name
    assert what == "has rows 4:sgd, and other files of table user id have rows 4:adagrad"
    with pytest.raises(TableConflict):
        restore_shard(Store(0), folder, routing.even_owners(1), 0)


def test_a_missing_part_of_a_variable_is_found(copy):
    files = [file for file in manifest.read(copy).files if file.kind == FileKind.VARIABLES]
    file = next(file for file in files if file.rows)

    def change(columns):
        return {**columns, "parts": pa.array([2], pa.int32())}

    rewrite(copy, file, change)
    assert (file.name, "variable 'w': parts [0] of 2 are in the files") in problems(copy)


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_300000_rows_are_verified_and_one_changed_among_them_is_found(tmp_path, order):
    ids = at_size.ids_in(order, 300_000)
    values = np.random.default_rng(1).standard_normal((ids.size, 4)).astype(np.float32)
    plain = replace(checkpoints.USER, admission=None)
    path = checkpoints.write(checkpoints.stores_with([(plain, ids, values, 9)]), tmp_path, 1)
    found = verify(path)
    assert found.problems == []
    assert found.rows == ids.size

    file = file_of(path, FileKind.TABLE, 1)
    content = bytearray((path / file.name).read_bytes())
    place = content.index(values[owners_of(ids) == 1][1000].tobytes())
    content[place] ^= 1
    (path / file.name).write_bytes(content)
    assert [name for name, _ in problems(path)] == [file.name]


def owners_of(ids):
    return routing.even_owners(2)[routing.buckets_of(ids)]
