"""The file of a table is grouped by bucket, and a ps reads only the blocks of its own buckets."""

import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import blocks, manifest
from megalith.checkpoint.layout.blocks import blocks_of
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import CheckpointDamaged
from megalith.ps.store.store import Store
from megalith.schema import Adagrad, Adam, Ftrl, Segment, Sgd, TableConfig, Zeros
from megalith.wire import routing
from support import at_size

ROWS = 300_000
DIM = 16
CONFIG = TableConfig("t", (Segment(DIM, Zeros(), Adagrad(0.5)),))


def rows_for(ids, width):
    """Floats that say of which id they are."""
    first = (ids % 1_000_003).astype(np.float32)[:, None]
    return np.ascontiguousarray(first + np.arange(width, dtype=np.float32) / 64)


def saved(directory, ids, config=CONFIG, num_ps=1):
    """The table's files of a checkpoint that so many servers wrote."""
    directory.mkdir(parents=True)
    owner = routing.even_owners(num_ps)[routing.buckets_of(ids)]
    files = []
    for index in range(num_ps):
        store = Store(index)
        table = EmbeddingTable(config)
        own = np.ascontiguousarray(ids[owner == index])
        table.load(own, rows_for(own, table.layout.width), np.full(own.size, 1234))
        store.adopt(table=table)
        files += save_shard(store, directory, "s", index, num_ps, {"t": 3}).files

    manifest.write(directory, Manifest(1, num_ps, 1.0, tuple(files), save_id="s"))
    return [file for file in manifest.read(directory).files if file.kind == "table"]


def restored(directory, num_ps, index):
    store = Store(index)
    report = restore_shard(store, directory, routing.even_owners(num_ps), index)
    return report, store.tables()[0]


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_each_record_batch_has_rows_of_at_most_32_neighbouring_buckets(tmp_path, order):
    ids = at_size.ids_in(order, ROWS)
    (file,) = saved(tmp_path / "c", ids)
    head, *found, end = blocks_of(file)
    assert head.rows == end.rows == 0
    reader = pa.ipc.open_file(pa.BufferReader((tmp_path / "c" / file.name).read_bytes()))
    assert reader.num_record_batches == len(found) > 32
    all_ids = []
    for number, block in enumerate(found):
        batch = reader.get_batch(number)
        buckets = routing.buckets_of(batch.column("id").to_numpy())
        assert (buckets.min(), buckets.max()) == (block.first, block.last)
        assert batch.num_rows == block.rows
        all_ids.append(batch.column("id").to_numpy())

    full = [block for block in found if block.rows >= 8192]
    assert {block.first // 32 for block in full} == {block.last // 32 for block in full}
    assert all(block.first // 32 == block.last // 32 for block in full)
    np.testing.assert_array_equal(np.sort(np.concatenate(all_ids)), np.sort(ids))


def test_a_small_table_is_one_record_batch(tmp_path):
    (file,) = saved(tmp_path / "c", np.arange(1000))
    assert [block.rows for block in blocks_of(file)] == [0, 1000, 0]


def test_a_table_without_rows_has_a_head_and_an_end_only(tmp_path):
    (file,) = saved(tmp_path / "c", np.empty(0, np.int64))
    assert [block.rows for block in blocks_of(file)] == [0, 0]
    report, table = restored(tmp_path / "c", 2, 1)
    assert report.rows == len(table) == 0


@pytest.mark.parametrize("num_ps", [1, 2, 3, 5])
def test_servers_read_the_blocks_of_their_buckets_and_few_others(tmp_path, monkeypatch, num_ps):
    ids = at_size.ids_in("random", ROWS)
    files = saved(tmp_path / "c", ids, num_ps=2)
    read_bytes = Counter()
    read = blocks.read

    def counted(directory, file, block):
        read_bytes[block.rows > 0] += block.size
        return read(directory, file, block)

    monkeypatch.setattr(blocks, "read", counted)
    owner = routing.even_owners(num_ps)[routing.buckets_of(ids)]
    for index in range(num_ps):
        report, table = restored(tmp_path / "c", num_ps, index)
        own = np.sort(ids[owner == index])
        dumped = table.dump(limit=ROWS + 1)
        at = np.argsort(dumped.ids)
        assert report.rows == own.size
        np.testing.assert_array_equal(dumped.ids[at], own)
        np.testing.assert_array_equal(dumped.rows[at], rows_for(own, 2 * DIM))
        np.testing.assert_array_equal(dumped.times, 1234)

    # A block that two servers share is read by both. All leftovers of a file share some blocks.
    assert read_bytes[True] < 1.5 * sum(file.bytes for file in files)


def test_a_damaged_block_stops_the_servers_that_need_it_and_no_other(tmp_path):
    ids = at_size.ids_in("random", ROWS)
    (file,) = saved(tmp_path / "c", ids)
    path = tmp_path / "c" / file.name
    block = next(block for block in blocks_of(file) if block.rows and block.last < 512)
    content = bytearray(path.read_bytes())
    content[block.offset + block.size - 100] ^= 1
    path.write_bytes(content)
    report, _ = restored(tmp_path / "c", 2, 1)
    assert report.rows == np.count_nonzero(routing.buckets_of(ids) >= 512)
    with pytest.raises(CheckpointDamaged, match=rf"{file.name} is not what .* byte {block.offset}"):
        restored(tmp_path / "c", 2, 0)


def test_the_blocks_are_all_bytes_of_a_file_which_has_no_other_checksum(tmp_path):
    ids = at_size.ids_in("random", 30_000)
    (file,) = saved(tmp_path / "c", ids)
    content = (tmp_path / "c" / file.name).read_bytes()
    assert file.sha256 == ""
    end = 0
    for block in blocks_of(file):
        assert block.offset == end
        end += block.size
        assert zlib.crc32(content[block.offset : end]) == block.crc32

    assert end == len(content)


def test_every_flipped_bit_of_a_file_is_named_by_verify(tmp_path):
    directory = tmp_path / "c"
    (file,) = saved(directory, np.arange(100))
    whole = (directory / file.name).read_bytes()
    for place in range(0, len(whole), 97):
        content = bytearray(whole)
        content[place] ^= 1 << (place % 8)
        (directory / file.name).write_bytes(content)
        (problem,) = verify(directory).problems
        assert problem.file == file.name
        assert "is not what was written" in problem.what


def test_two_files_that_were_swapped_are_both_named(tmp_path):
    directory = tmp_path / "c"
    one, other = saved(directory, np.arange(2048), num_ps=2)
    (directory / one.name).rename(directory / "aside")
    (directory / other.name).rename(directory / one.name)
    (directory / "aside").rename(directory / other.name)
    assert {problem.file for problem in verify(directory).problems} == {one.name, other.name}
    with pytest.raises(CheckpointDamaged, match=one.name):
        restored(directory, 2, 0)


def test_a_file_without_any_checksum_is_refused(tmp_path):
    directory = tmp_path / "c"
    (file,) = saved(directory, np.arange(100))
    content = manifest.read(directory)
    files = [replace(each, blocks=()) if each == file else each for each in content.files]
    manifest.write(directory, replace(content, files=tuple(files)))
    with pytest.raises(CheckpointDamaged, match=rf"no checksum of .*{file.name}"):
        restored(directory, 1, 0)


@pytest.mark.parametrize("place", [100, -100])
def test_a_damaged_head_or_end_stops_all(tmp_path, place):
    (file,) = saved(tmp_path / "c", np.arange(1000))
    path = tmp_path / "c" / file.name
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=f"{file.name} is not what was written"):
        restored(tmp_path / "c", 1, 0)


@pytest.mark.parametrize(
    "segments",
    [
        (Segment(3, Zeros(), Sgd(0.5)),),
        (Segment(1, Zeros(), Ftrl(0.5)), Segment(2, Zeros(), Adam(0.1))),
        (Segment(2, Zeros(), Sgd(0.5)), Segment(2, Zeros(), Adagrad(0.1))),
    ],
    ids=["no state", "six fields", "one of two"],
)
def test_every_float_of_a_row_is_in_a_column_and_comes_back(tmp_path, segments):
    config = TableConfig("t", segments)
    ids = np.arange(500)
    (file,) = saved(tmp_path / "c", ids, config)
    table = pa.ipc.open_file(pa.BufferReader((tmp_path / "c" / file.name).read_bytes())).read_all()
    widths = [field.type.list_size for field in table.schema if hasattr(field.type, "list_size")]
    width = EmbeddingTable(config).layout.width
    assert sum(widths) == width
    _, back = restored(tmp_path / "c", 1, 0)
    dumped = back.dump(limit=1000)
    np.testing.assert_array_equal(dumped.rows, rows_for(dumped.ids, width))


def test_a_file_says_up_to_which_set_of_the_delta_log_it_has_all_changes(tmp_path):
    (file,) = saved(tmp_path / "c", np.arange(1000))
    assert file.through == 3
