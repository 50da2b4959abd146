"""Blobs through SDK, servers, checkpoints and increments."""

from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.directory.increments import read_chain
from megalith.client import Segment, Sgd, TableConfig, Zeros
from megalith.errors import InvalidRequest, LimitExceeded, MessageTooLarge, UnknownBlob
from megalith.runtime.rpc.server import ServerSettings
from support.servers import GRACE_S, Servers
from support.waiting import wait_until

RNG = np.random.default_rng(5)
BLOBS = {f"part {number}": RNG.bytes(100_000 + number) for number in range(12)}
SIZES = {name: len(data) for name, data in BLOBS.items()}
TABLE = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),))


def put_all(cluster, blobs=BLOBS):
    for name, data in blobs.items():
        cluster.put_blob(name, data)


def read_all(cluster):
    return {name: cluster.get_blob(name) for name in cluster.blobs()}


def test_what_was_put_is_read_listed_and_dropped(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        assert cluster.blobs() == {}
        put_all(cluster)
        other = servers.connect()
        assert other.blobs() == SIZES
        assert list(other.blobs()) == sorted(BLOBS)
        assert read_all(other) == BLOBS
        owners = {cluster.controller.routing().owner_of_name(name) for name in BLOBS}
        assert owners == {0, 1}, "both have some of them"

        cluster.put_blob("part 1", bytearray(b"again"))
        cluster.put_blob("part 2", memoryview(b""))
        assert (other.get_blob("part 1"), other.get_blob("part 2")) == (b"again", b"")
        assert cluster.drop_blob("part 1") == 5
        with pytest.raises(UnknownBlob, match="no blob 'part 1'"):
            other.get_blob("part 1")
        with pytest.raises(UnknownBlob, match="no blob 'part 1'"):
            other.drop_blob("part 1")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("", b"1", "is empty"),
        ("x" * 257, b"1", "the most is 256"),
        (3, b"1", "expected a text"),
        ("head", "text", "is of type str, expected bytes"),
        ("head", None, "is of type NoneType, expected bytes"),
        ("head", [1, 2], "is of type list, expected bytes"),
    ],
)
def test_bad_input_is_an_error_of_its_own(tmp_path, name, data, said):
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        with pytest.raises(InvalidRequest, match=said):
            cluster.put_blob(name, data)
        assert cluster.blobs() == {}


def test_too_large_ones_are_refused_and_the_limit_is_named(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_controller()
        small = ServerSettings(max_message_bytes=300_000)
        servers.start_ps(0, server=small, max_blob_bytes=500_000)
        cluster = servers.connect(max_message_bytes=200_000)
        cluster.put_blob("head", bytes(190_000))
        with pytest.raises(MessageTooLarge, match=r"blob 'head' of 200000 bytes.*limit of 200000"):
            cluster.put_blob("head", bytes(200_000))

        generous = servers.connect(max_message_bytes=1 << 20)
        with pytest.raises(MessageTooLarge, match=r"blob 'tail' of 300000 bytes.*300000"):
            generous.put_blob("tail", bytes(300_000))
        generous.put_blob("tail", bytes(299_000))
        with pytest.raises(MessageTooLarge, match=r"200000"):
            cluster.get_blob("tail")

        with pytest.raises(LimitExceeded, match=r"589000 bytes of blobs.*--max-blob-bytes=500000"):
            cluster.put_blob("third", bytes(100_000))
        assert cluster.blobs() == {"head": 190_000, "tail": 299_000}


def test_a_blob_of_a_server_with_a_larger_limit_is_kept_and_its_read_says_what_to_do(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.put_blob("head", bytes(500_000))
        cluster.controller.save()

    with Servers(tmp_path) as servers:
        servers.start_controller()
        servers.start_ps(0, server=ServerSettings(max_message_bytes=300_000), max_blob_bytes=10)
        cluster = servers.connect()
        assert cluster.blobs() == {"head": 500_000}, "nothing of a checkpoint is left out"
        with pytest.raises(MessageTooLarge, match=r"500000 bytes.*300000.*--max-message-bytes"):
            cluster.get_blob("head")


def test_a_checkpoint_has_them_for_any_number_of_servers(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TABLE)
        put_all(cluster)
        cluster.controller.save()
        cluster.put_blob("later", b"not saved")

    with Servers(tmp_path, num_ps=3) as servers:
        servers.start_all()
        cluster = servers.connect()
        assert read_all(cluster) == BLOBS
        cluster.put_blob("part 0", b"new")
        cluster.controller.save()

    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_all()
        assert read_all(servers.connect()) == {**BLOBS, "part 0": b"new"}


def test_increments_have_them_though_nothing_else_changes(tmp_path):
    """A job of two servers, killed after the increment, goes on with three."""
    with Servers(tmp_path, num_ps=2, increment_every_s=0.2) as servers:
        servers.start_all()
        cluster = servers.connect()
        put_all(cluster)
        base = Path(cluster.controller.save().path)
        cluster.put_blob("part 3", b"changed")
        wait_until(lambda: read_chain(base).number >= 1, what="an increment")
        wait_until(lambda: not cluster.controller.status().unsaved, what="all is saved")
        number = read_chain(base).number
        cluster.drop_blob("part 4")
        wait_until(lambda: read_chain(base).number > number, what="an increment")
        wait_until(lambda: not cluster.controller.status().unsaved, what="all is saved")
        expected = {**BLOBS, "part 3": b"changed"}
        del expected["part 4"]
        assert read_all(cluster) == expected

    with Servers(tmp_path, num_ps=3) as servers:
        servers.start_all()
        assert read_all(servers.connect()) == expected


def test_a_replaced_ps_has_its_blobs_again_and_the_other_keeps_its_own(tmp_path):
    with Servers(tmp_path, num_ps=2, increment_every_s=0.2) as servers:
        servers.start_controller()
        running = [servers.start_ps(index) for index in range(2)]
        cluster = servers.connect()
        put_all(cluster)
        base = Path(cluster.controller.save().path)
        changed = {name: data[:7] for name, data in BLOBS.items()}
        put_all(cluster, changed)
        wait_until(lambda: read_chain(base).number >= 1, what="an increment")
        wait_until(lambda: not cluster.controller.status().unsaved, what="all is saved")

        for index in range(2):
            epoch = cluster.controller.routing().epoch
            running[index].stop(GRACE_S)
            running[index] = servers.start_ps(index)
            wait_until(lambda epoch=epoch: cluster.controller.routing().epoch > epoch)
            assert read_all(cluster) == changed
