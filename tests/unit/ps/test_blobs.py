"""The blobs of one ps."""

import pytest

from megalith.errors import InvalidRequest, LimitExceeded, ShardNotOwned, StaleEpoch, UnknownBlob
from megalith.ps.store.blobs import Blobs
from megalith.ps.store.store import Store
from megalith.wire import routing


def test_a_put_takes_the_place_of_what_the_name_had():
    blobs = Blobs(100)
    blobs.put("head", b"first")
    blobs.put("head", b"second one")
    assert blobs.get("head") == b"second one"
    assert (blobs.nbytes, blobs.changes) == (10, 2)


def test_an_empty_blob_is_one():
    blobs = Blobs(0)
    blobs.put("head", b"")
    assert blobs.get("head") == b""
    assert blobs.drop("head") == 0
    assert blobs.drop("head") is None


def test_an_unknown_name_says_what_there_is():
    blobs = Blobs(100)
    blobs.put("head", b"1")
    with pytest.raises(UnknownBlob, match=r"no blob 'tail'.*\['head'\]"):
        blobs.get("tail")


def test_the_bound_is_on_all_blobs_together_and_a_refusal_changes_nothing():
    blobs = Blobs(10)
    blobs.put("a", b"12345")
    blobs.put("b", b"12345")
    with pytest.raises(LimitExceeded, match=r"--max-blob-bytes=10; drop others"):
        blobs.put("c", b"1")
    with pytest.raises(LimitExceeded, match="11 bytes of blobs"):
        blobs.put("a", b"123456")
    assert blobs.all() == {"a": b"12345", "b": b"12345"}
    assert (blobs.nbytes, blobs.changes) == (10, 2)
    assert blobs.drop("a") == 5
    blobs.put("c", b"12345")
    assert blobs.nbytes == 10


def test_what_was_restored_beyond_the_bound_stays_and_may_shrink():
    blobs = Blobs(10)
    blobs.adopt({"a": bytes(20), "b": bytes(3)})
    assert blobs.nbytes == 23
    with pytest.raises(LimitExceeded):
        blobs.put("b", bytes(4))
    blobs.put("a", bytes(15))
    assert blobs.nbytes == 18


def test_a_bad_name_is_refused():
    with pytest.raises(InvalidRequest, match="is empty"):
        Blobs(10).put("", b"1")


def test_a_store_takes_blobs_of_its_own_buckets_routed_by_its_map():
    current = routing.Routing(3, ("a", "b"), routing.even_owners(2), "run")
    store = Store(current.owner_of_name("head"))
    store.route(current, is_initialized=True)
    store.put_blob(3, "head", b"data")
    assert store.get_blob(3, "head") == b"data"
    assert store.blob_sizes(3) == {"head": 4}
    assert store.pushes == 1, "an increment is due"

    other = Store(1 - store.index)
    other.route(current, is_initialized=True)
    for call in (
        lambda: other.put_blob(3, "head", b"data"),
        lambda: other.get_blob(3, "head"),
        lambda: other.drop_blob(3, "head"),
    ):
        with pytest.raises(ShardNotOwned, match="blob 'head' is of shard"):
            call()
    for call in (
        lambda: store.put_blob(2, "head", b"old"),
        lambda: store.get_blob(2, "head"),
        lambda: store.drop_blob(2, "head"),
        lambda: store.blob_sizes(2),
    ):
        with pytest.raises(StaleEpoch):
            call()
    assert store.blobs() == {"head": b"data"}
