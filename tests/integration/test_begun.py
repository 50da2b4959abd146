"""Calls that are sent now and answered when asked: the same outcome as the ordinary ones, and
nothing left behind."""

import dataclasses
import threading
import zlib

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, VariableConfig, Zeros, errors
from megalith.client._transport.requests import UnaryCall
from support.servers import Servers

TABLE = TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),))
ONES = np.ones((1, 2), np.float32)
MANY = np.arange(40_000)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with Servers(tmp_path_factory.mktemp("model"), num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index)
        servers.connect().create_tables(TABLE)
        servers.connect().create_variables(VariableConfig("n", np.zeros((), np.int64)))
        yield servers


@pytest.fixture(params=[True, False], ids=["lane", "unary"])
def cluster(request, servers):
    with servers.connect(bulk_lane=request.param) as cluster:
        yield cluster


@pytest.fixture
def key(request):
    """An id of this test's own."""
    return np.array([zlib.crc32(request.node.nodeid.encode()) << 24])


def test_a_begun_step_has_the_outcome_of_an_ordinary_one(cluster, key):
    before = cluster.pull(variables=["n"]).variables["n"]
    assert cluster.begin_push({"t": (key, ONES)}, add_to_variables={"n": np.array(3)}).result() == {
        "n": before + 3
    }
    begun = cluster.begin_pull({"t": np.repeat(key, 2)}, ["n"])
    for _ in range(2):
        np.testing.assert_array_equal(begun.result().rows["t"], -np.ones((2, 2)))
        assert begun.result().variables["n"] == before + 3


def test_begun_pushes_are_applied_in_their_order_and_each_once_though_nobody_asks(cluster, key):
    cluster.create_variables(VariableConfig("last", np.zeros((), np.int64)))
    begun = [
        cluster.begin_push({"t": (key, ONES)}, assign_variables={"last": np.array(number)})
        for number in range(50)
    ]
    assert all(each.is_done for each in begun[:-1])
    cluster.push({"t": (key, ONES)})
    assert begun[-1].is_done
    pulled = cluster.pull({"t": key}, ["last"])
    np.testing.assert_array_equal(pulled.rows["t"], [[-51, -51]])
    assert pulled.variables["last"] == 49


def test_an_error_of_a_begun_push_is_its_own_and_the_next_one_goes_on(cluster, key):
    # The SDK lets twice the width through, which a dc segment would take; the server does not.
    wrong = cluster.begin_push({"t": (key, np.ones((1, 4), np.float32))})
    right = cluster.begin_push({"t": (key, ONES)})
    assert right.result() == {}
    for _ in range(2):
        with pytest.raises(errors.ShapeMismatch):
            wrong.result()
    with pytest.raises(errors.UnknownTable):
        cluster.begin_pull({"x": [1]}).result()
    np.testing.assert_array_equal(cluster.pull({"t": key}).rows["t"], [[-1, -1]])


WRONG = np.ones((1, 4), np.float32)  # as above: refused by the server, not by the SDK


def warnings_of(caplog):
    return [
        record.message for record in caplog.records if record.name.startswith("megalith.client")
    ]


def test_begun_pushes_that_fail_are_said_and_counted_though_nobody_asks(servers, key, caplog):
    """By the next write, and by `close`; not those that are asked about."""
    with servers.connect() as cluster:
        cluster.begin_push({"t": (key, WRONG)})
        cluster.push({"t": (key, ONES)})
        (said,) = warnings_of(caplog)
        assert (
            "a write failed before anybody asked for its result: table t: gradients have shape"
            in said
        )
        assert "so far: 1" in said
        asked = cluster.begin_push({"t": (key, WRONG)})
        with pytest.raises(errors.ShapeMismatch):
            asked.result()
        with pytest.raises(errors.ShapeMismatch):
            cluster.push({"t": (key, WRONG)})
        cluster.push({"t": (key, ONES)})
        assert warnings_of(caplog) == [said]
        cluster.begin_push({"t": (key, WRONG)})
    cluster.close()
    assert len(warnings_of(caplog)) == 2
    assert "so far: 2" in warnings_of(caplog)[1]


def test_a_begun_push_that_failed_for_lack_of_room_is_said_by_the_next_write(servers, key, caplog):
    with servers.connect(max_inflight=1) as cluster:
        cluster.begin_push({"t": (key, WRONG)})
        cluster.begin_pull({"t": key}).result()  # settles the push to make room
        assert not warnings_of(caplog)
        cluster.push({"t": (key, ONES)})
        assert len(warnings_of(caplog)) == 1


def test_closing_without_waiting_says_how_many_pushes_it_gives_up(servers, caplog):
    cluster = servers.connect()
    cluster.begin_push(add_to_variables={"n": np.array(0)})
    cluster.close(wait=False)
    said = warnings_of(caplog)
    for wait in (False, True):  # said and counted once
        cluster.close(wait=wait)
        assert warnings_of(caplog) == said
    assert said[-1] == "closed without waiting: gave up 1 pushes that were begun"
    assert cluster.writes_unknown == 1
    assert "may or may not have been applied" in said[0]


def test_a_push_whose_outcome_stays_unknown_is_counted_once_however_often_a_client_is_closed(
    servers, key, caplog, monkeypatch
):
    def lose_reply(*_):
        raise errors.PeerUnreachable("the reply was lost")

    cluster = servers.connect(timeout_s=0.5, bulk_lane=False)
    cluster.pull({"t": key})  # it knows the map and the table
    cluster._tables.config_of("t")
    monkeypatch.setattr(UnaryCall, "finish", lose_reply)
    with pytest.raises(errors.OutcomeUnknown):
        cluster.push({"t": (key, ONES)})
    cluster.close()
    assert cluster.writes_unknown == 1
    said = warnings_of(caplog)
    cluster.close()
    assert cluster.writes_unknown == 1
    assert warnings_of(caplog) == said


def test_closing_without_waiting_is_silent_when_nothing_is_given_up(servers, caplog):
    cluster = servers.connect()
    cluster.begin_push(add_to_variables={"n": np.array(0)}).result()
    cluster.begin_pull({"t": MANY})
    cluster.close(wait=False)
    assert not warnings_of(caplog)


def test_calls_that_nobody_asks_about_make_room_for_others(servers, key):
    """By number, and by bytes: both would be full for ever if only their owner could settle
    them."""
    with servers.connect(max_inflight=3, max_inflight_bytes=400_000) as cluster:
        begun = [cluster.begin_pull({"t": MANY}) for _ in range(6)]
        assert sum(not each.is_done for each in begun) <= 3
        cluster.pull({"t": MANY})
        cluster.begin_push({"t": (key, ONES)})
        cluster.push({"t": (MANY, np.zeros((MANY.size, 2), np.float32))})
        assert all(each.result().rows["t"].shape == (MANY.size, 2) for each in begun)
        np.testing.assert_array_equal(cluster.pull({"t": key}).rows["t"], [[-1, -1]])
        assert cluster._servers._budget.held_bytes == 0


def test_replies_larger_than_any_socket_buffer_wait_while_the_next_request_is_sent(
    servers, cluster
):
    gradients = np.zeros((1 << 20, 2), np.float32)
    ids = np.arange(1 << 20)
    begun = [cluster.begin_pull({"t": ids}) for _ in range(2)]
    pushed = cluster.begin_push({"t": (ids, gradients)})
    assert begun[1].result().rows["t"].shape == gradients.shape
    assert pushed.result() == {}
    assert begun[0].result().rows["t"].shape == gradients.shape


def test_closing_waits_for_a_begun_push_and_gives_up_pulls(servers, key):
    with servers.connect() as leaving:
        pushed, pulled = leaving.begin_push({"t": (key, ONES)}), leaving.begin_pull({"t": MANY})
    assert pushed.is_done
    assert pushed.result() == {}
    with pytest.raises(errors.InvalidRequest, match="closed"):
        pulled.result()
    with servers.connect() as cluster:
        np.testing.assert_array_equal(cluster.pull({"t": key}).rows["t"], [[-1, -1]])


def test_closing_without_waiting_gives_up_everything(servers):
    cluster = servers.connect()
    pushed, pulled = (
        cluster.begin_push(add_to_variables={"n": np.array(0)}),
        cluster.begin_pull({"t": MANY}),
    )
    cluster.close(wait=False)
    for begun in (pushed, pulled):
        with pytest.raises(errors.InvalidRequest, match="closed"):
            begun.result()
    with pytest.raises(errors.InvalidRequest, match="closed"):
        cluster.begin_pull({"t": MANY}).result()


def test_a_pull_that_was_given_up_leaves_no_bytes_and_the_next_one_is_right(cluster, key):
    cluster.push({"t": (key, ONES)})
    cluster.begin_pull({"t": key}).abandon(errors.Unavailable("not needed"))
    assert cluster._servers._budget.held_bytes == 0
    np.testing.assert_array_equal(cluster.pull({"t": key}).rows["t"], [[-1, -1]])


def test_threads_that_share_a_client_lose_no_push_and_get_their_own_rows(servers, key):
    steps, threads = 40, 4
    mine = [key + 1 + number for number in range(threads)]
    failures = []

    def train(own):
        try:
            for step in range(steps):
                pulled = cluster.begin_pull({"t": own})
                pushed = cluster.begin_push(
                    {"t": (np.concatenate([key, own]), np.ones((2, 2), np.float32))}
                )
                if step % 3 == 0:
                    cluster.push({"t": (own, np.zeros((1, 2), np.float32))})
                if step % 2:
                    assert pushed.result() == {}
                seen = -pulled.result().rows["t"][0, 0]
                assert (
                    step - 1 <= seen <= step + 1
                )  # the pushes of the last step and of this one were beside it
        except BaseException as error:
            failures.append(error)
            raise

    with servers.connect(max_inflight=3) as cluster:
        running = [threading.Thread(target=train, args=(own,)) for own in mine]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(120)
        assert not failures
        assert not any(thread.is_alive() for thread in running)
    with servers.connect() as reader:
        rows = reader.pull({"t": np.concatenate([key, *mine])}).rows["t"][:, 0]
    np.testing.assert_array_equal(rows, [-steps * threads, *[-steps] * threads])


def test_a_begun_call_survives_a_change_of_the_map(tmp_path, key):
    """The server refuses the old epoch.

    The answer is asked for afterwards, and the push is applied once.
    """
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0)
        with servers.connect() as cluster:
            cluster.create_tables(TABLE)
            routing = cluster._servers.routing()
            cluster._servers._map._routing = dataclasses.replace(routing, epoch=routing.epoch + 7)
            pushed, pulled = cluster.begin_push({"t": (key, ONES)}), cluster.begin_pull({"t": key})
            assert pushed.result() == {}
            assert pulled.result().rows["t"].shape == (1, 2)
            assert cluster._servers.routing().epoch == routing.epoch
            np.testing.assert_array_equal(cluster.pull({"t": key}).rows["t"], [[-1, -1]])
