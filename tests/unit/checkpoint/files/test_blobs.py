"""Blobs in checkpoints: on any number of servers, in increments, and what damage is found."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from megalith.checkpoint.directory import increments
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.inspection.details import details
from megalith.checkpoint.inspection.difference import compare
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.increment import save_increment
from megalith.checkpoint.saving.save import save_shard
from megalith.errors import CheckpointDamaged
from megalith.ps.store.store import Store
from megalith.wire import routing

RNG = np.random.default_rng(0)
BLOBS = {f"blob {number}": RNG.bytes(number * 100) for number in range(20)}


def stores_of(num_ps, blobs=BLOBS):
    current = routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps), "run")
    stores = [Store(index) for index in range(num_ps)]
    for store in stores:
        store.route(current, is_initialized=True)
    for name, data in blobs.items():
        stores[current.owner_of_name(name)].put_blob(1, name, data)
    return stores


def write(stores, directory):
    directory.mkdir(parents=True)
    files = []
    for index, store in enumerate(stores):
        files += save_shard(store, directory, "id", index, len(stores)).files
    manifest.write(directory, Manifest(7, len(stores), 1.0, tuple(files), save_id="id"))
    return directory


def write_increment(stores, base):
    link = increments.read_chain(base).next_link()
    work = base.parent / f"saving-{link.number}"
    work.mkdir()
    files = []
    for index, store in enumerate(stores):
        saved = save_increment(store, {}, work, "i", index, len(stores))
        files += saved.shard.files
    manifest.write(work, Manifest(7, len(stores), 2.0, tuple(files), save_id="i", link=link))
    return increments.publish(work, base, link.number)


def restored(directory, num_ps):
    """By ps."""
    held = []
    for index in range(num_ps):
        store = Store(index)
        restore_shard(store, directory, routing.even_owners(num_ps), index)
        held.append(store.blobs())
    return held


def blob_files(directory):
    return [file for file in manifest.read(directory).files if file.kind is FileKind.BLOBS]


def rewrite(directory, file, names, datas):
    """Another content of a file of blobs, of which the manifest knows."""
    table = pa.table({"name": names, "data": pa.array(datas, pa.large_binary())})
    path = directory / file.name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = manifest.read(directory)
    new = replace(file, bytes=path.stat().st_size, sha256=manifest.sha256_of(path))
    files = tuple(new if each.name == file.name else each for each in content.files)
    manifest.write(directory, replace(content, files=files))


@pytest.mark.parametrize("num_ps", [1, 2, 3, 5])
def test_each_server_gets_the_blobs_of_its_names(tmp_path, num_ps):
    saved = write(stores_of(2), tmp_path / "model.ckpt-7")
    current = routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps), "run")
    found = restored(saved, num_ps)
    for index, held in enumerate(found):
        expected = {
            name: data for name, data in BLOBS.items() if current.owner_of_name(name) == index
        }
        assert held == expected
    assert sum(len(held) for held in found) == len(BLOBS)


def test_pyarrow_alone_reads_them(tmp_path):
    saved = write(stores_of(2), tmp_path / "model.ckpt-7")
    found = {}
    for path in sorted(saved.glob("blobs-*.arrow")):
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)
        found.update(zip(table["name"].to_pylist(), table["data"].to_pylist(), strict=True))
    assert found == BLOBS


def test_a_server_without_blobs_writes_no_file(tmp_path):
    saved = write(stores_of(2, {}), tmp_path / "model.ckpt-7")
    assert blob_files(saved) == []
    assert restored(saved, 2) == [{}, {}]


def test_those_of_the_last_increment_count(tmp_path):
    stores = stores_of(2)
    base = write(stores, tmp_path / "model.ckpt-7")
    routed = routing.Routing(1, ("a",) * 2, routing.even_owners(2), "run")

    def owner(name):
        return stores[routed.owner_of_name(name)]

    owner("blob 3").put_blob(1, "blob 3", b"new")
    write_increment(stores, base)
    expected = {**BLOBS, "blob 3": b"new"}
    first, second, third = restored(base, 3)
    assert first | second | third == expected

    for name in BLOBS:
        owner(name).drop_blob(1, name)
    last = write_increment(stores, base)
    assert blob_files(last) == []
    assert restored(base, 2) == [{}, {}]
    assert details(base).blobs == []
    assert verify(base).problems == []


def test_show_lists_them(tmp_path):
    saved = write(stores_of(2), tmp_path / "model.ckpt-7")
    found = {blob.name: blob.bytes for blob in details(saved).blobs}
    assert found == {name: len(data) for name, data in BLOBS.items()}
    assert list(found) == sorted(BLOBS)


def test_diff_says_which_changed(tmp_path):
    a = write(stores_of(2), tmp_path / "a" / "model.ckpt-7")
    same = write(stores_of(3), tmp_path / "same" / "model.ckpt-7")
    found = compare(a, same)
    assert (found.blobs, found.equal_blobs, found.is_equal) == ([], 20, True)

    others = {**BLOBS, "blob 5": b"other", "new": b"1"}
    del others["blob 6"]
    b = write(stores_of(2, others), tmp_path / "b" / "model.ckpt-7")
    found = compare(a, b)
    assert [(each.blob, each.what) for each in found.blobs] == [
        ("blob 5", "changed"),
        ("blob 6", "only in A"),
        ("new", "only in B"),
    ]
    assert (found.equal_blobs, found.is_equal) == (18, False)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named_and_nothing_is_restored(tmp_path, damage):
    saved = write(stores_of(2), tmp_path / "model.ckpt-7")
    file = blob_files(saved)[1]
    path = saved / file.name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    else:
        path.unlink()

    assert [problem.file for problem in verify(saved).problems] == [file.name]
    store = Store(1)
    with pytest.raises(CheckpointDamaged, match=file.name):
        restore_shard(store, saved, routing.even_owners(2), 1)
    assert store.blobs() == {}


def test_fewer_blobs_than_the_manifest_says_are_damage(tmp_path):
    saved = write(stores_of(1), tmp_path / "model.ckpt-7")
    (file,) = blob_files(saved)
    rewrite(saved, file, ["head"], [b"1"])
    with pytest.raises(CheckpointDamaged, match="has 1 blobs, the manifest says 20"):
        restored(saved, 1)
    (problem,) = verify(saved).problems
    assert "has 1 blobs, the manifest says 20" in problem.what


def test_a_name_in_two_files_is_damage(tmp_path):
    saved = write(stores_of(2, {"head": b"1", "blob 0": b"2", "blob 1": b"3"}), tmp_path / "m")
    first, second = blob_files(saved)
    for file in (first, second):
        rewrite(saved, file, ["head"] * file.rows, [b"1"] * file.rows)
    with pytest.raises(CheckpointDamaged, match="has blob 'head' twice"):
        restored(saved, 1)
    said = [problem.what for problem in verify(saved).problems]
    assert any("'head', which is there twice" in what for what in said)
    assert any("has ids of buckets" in what for what in said), "a server that did not own it"


def test_a_blob_without_a_name_is_damage(tmp_path):
    saved = write(stores_of(1, {"head": b"1"}), tmp_path / "m")
    (file,) = blob_files(saved)
    rewrite(saved, file, pa.array([None], pa.string()), [b"1"])
    with pytest.raises(CheckpointDamaged, match="without a name"):
        restored(saved, 1)
    assert not verify(saved).is_whole


def test_a_reader_that_does_not_know_a_kind_names_it(tmp_path):
    """As one of before there were blobs does."""
    saved = write(stores_of(1, {"head": b"1"}), tmp_path / "m")
    path = saved / "manifest.json"
    text = path.read_text().replace('"kind": "blobs"', '"kind": "later"')
    unsigned = text.replace(json.loads(text)["checksum"], "")
    digest = hashlib.sha256(unsigned.encode()).hexdigest()
    path.write_text(unsigned.replace('"checksum": ""', f'"checksum": "{digest}"'))
    with pytest.raises(CheckpointDamaged, match=r"blobs-.*unknown kind 'later'.*newer version"):
        manifest.read(saved)
