"""Dense variables through the SDK, against real servers: whole arrays to the user, parts on the
wire."""

import json
import threading

import numpy as np
import pytest
from click.testing import CliRunner

from megalith.cli.app import app
from megalith.client import (
    Adam,
    BackgroundCalls,
    GradientRecipe,
    Ones,
    PolynomialDecay,
    Rmsprop,
    Segment,
    Sgd,
    Shampoo,
    TableConfig,
    VariableCache,
    VariableConfig,
    VariableStats,
    errors,
)
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire.channel import open_channel
from support.servers import GRACE_S, Servers
from support.waiting import wait_until

NUM_PS = 3
BIG = np.arange(90 * 1000, dtype=np.float32).reshape(
    90, 1000
)  # 360 kB: three parts on three servers


def read(cluster, name):
    return cluster.pull(variables=[name]).variables[name]


def test_a_large_variable_is_split_and_read_whole(servers, cluster, name):
    cluster.create_variables(VariableConfig(name, BIG, Sgd(1.0)))
    np.testing.assert_array_equal(read(cluster, name), BIG)
    routing = cluster.controller.routing()
    keys = []
    for address in routing.addresses:
        with open_channel(address) as channel:
            status = parameter_server_pb2_grpc.ParameterServerStub(channel).GetPsStatus(
                pb.GetPsStatusRequest()
            )
            keys.append([key for key in status.variables if key.startswith(name)])
    home = routing.owner_of_name(name)
    assert [keys[(home + number) % 3] for number in range(3)] == [
        [f"{name}@{number}/3"] for number in range(3)
    ]


def test_every_kind_of_update_reaches_every_part(servers, cluster, name):
    cluster.create_variables(
        VariableConfig(name, BIG, Sgd(0.5)), VariableConfig(f"{name}-n", np.arange(60_000))
    )
    other = servers.connect()  # one that did not create it
    other.push(variable_gradients={name: np.ones_like(BIG)})
    np.testing.assert_array_equal(read(cluster, name), BIG - 0.5)
    added = other.push(add_to_variables={name: BIG, f"{name}-n": np.ones(60_000, np.int64)})
    np.testing.assert_array_equal(added[name], 2 * BIG - 0.5)
    np.testing.assert_array_equal(added[f"{name}-n"], np.arange(60_000) + 1)
    other.push(assign_variables={name: -BIG})
    np.testing.assert_array_equal(read(cluster, name), -BIG)
    raised = other.push(
        add_to_variables={f"{name}-n": np.ones(60_000, np.int64)},
        raise_variables={name: 0 * BIG - 500},
    )
    np.testing.assert_array_equal(raised[name], np.maximum(-BIG, -500))
    np.testing.assert_array_equal(raised[f"{name}-n"], np.arange(60_000) + 2)
    np.testing.assert_array_equal(read(cluster, name), np.maximum(-BIG, -500))


def test_creating_again_keeps_the_value_and_takes_new_settings(cluster, name):
    cluster.create_variables(VariableConfig(name, BIG, Sgd(0.5)))
    cluster.push(variable_gradients={name: np.ones_like(BIG)})
    cluster.create_variables(VariableConfig(name, 0 * BIG, Sgd(1.0), PolynomialDecay(1.0, 10, 0.0)))
    np.testing.assert_array_equal(read(cluster, name), BIG - 0.5)
    cluster.push(variable_gradients={name: np.ones_like(BIG)}, step=5)
    np.testing.assert_array_equal(read(cluster, name), BIG - 1.0)


@pytest.mark.parametrize(
    "other",
    [
        VariableConfig("x", BIG, Adam()),
        VariableConfig("x", BIG[:50], Sgd()),
        VariableConfig("x", BIG[:5], Sgd()),
    ],
)
def test_another_optimizer_or_shape_is_a_conflict_and_creates_nothing(
    servers, cluster, name, other
):
    cluster.create_variables(VariableConfig(name, BIG, Sgd()))
    with pytest.raises(errors.TableConflict, match="exists as"):
        cluster.create_variables(VariableConfig(name, other.initial, other.optimizer))
    np.testing.assert_array_equal(read(servers.connect(), name), BIG)


def test_a_small_variable_does_not_grow_into_parts(servers, cluster, name):
    cluster.create_variables(VariableConfig(name, BIG[:5], Sgd()))
    with pytest.raises(errors.TableConflict):
        cluster.create_variables(VariableConfig(name, BIG, Sgd()))
    np.testing.assert_array_equal(read(servers.connect(), name), BIG[:5])


NAN = BIG.copy()
NAN[-1, -1] = np.nan
BAD = {
    "wrong shape": (
        {"variable_gradients": {"bad": BIG[:-1]}},
        errors.ShapeMismatch,
        r"gradient is float32 \[89, 1000\]",
    ),
    "transposed": (
        {"assign_variables": {"bad": BIG.T}},
        errors.ShapeMismatch,
        r"expected float32 \[90, 1000\]",
    ),
    "nan in the last part": (
        {"variable_gradients": {"bad": NAN}},
        errors.NonFiniteValue,
        "nothing was sent",
    ),
    "too large for float32": (
        {"add_to_variables": {"bad": BIG.astype(np.float64) + 1e300}},
        errors.NonFiniteValue,
        "infinity",
    ),
    "text": ({"add_to_variables": {"bad": "x"}}, errors.DtypeMismatch, "summand is <U1"),
    "beyond 64 bits": (
        {"add_to_variables": {"counter": 2**63}},
        errors.InvalidRequest,
        "holds 9223372036854775808",
    ),
    "floats for a counter": (
        {"add_to_variables": {"counter": 0.5}},
        errors.DtypeMismatch,
        "expected int64",
    ),
    "nan at least": (
        {"raise_variables": {"bad": NAN}},
        errors.NonFiniteValue,
        "least value holds NaN",
    ),
    "unknown": (
        {"variable_gradients": {"nobody": BIG}},
        errors.UnknownVariable,
        "no variable 'nobody'",
    ),
    "no optimizer": (
        {"variable_gradients": {"counter": np.array(1)}},
        errors.InvalidRequest,
        "no optimizer",
    ),
    "two updates": (
        {"variable_gradients": {"bad": BIG}, "add_to_variables": {"bad": BIG}},
        errors.DuplicateIds,
        "more than one update",
    ),
    "negative step": (
        {"variable_gradients": {"bad": BIG}, "step": -1},
        errors.InvalidRequest,
        "step -1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_update_is_a_typed_error_and_changes_no_part(cluster, case):
    cluster.create_tables(TableConfig("rows", (Segment(2, optimizer=Sgd(1.0)),)))
    cluster.create_variables(
        VariableConfig("bad", BIG, Sgd(1.0)), VariableConfig("counter", np.zeros((), np.int64))
    )
    push, error, message = BAD[case]
    with pytest.raises(error, match=message):
        cluster.push({"rows": (np.arange(50), np.ones((50, 2), np.float32))}, **push)
    np.testing.assert_array_equal(read(cluster, "bad"), BIG)
    assert read(cluster, "counter") == 0
    assert not cluster.pull({"rows": np.arange(50)}).rows["rows"].any()


def test_an_unknown_variable_cannot_be_read(cluster):
    with pytest.raises(errors.UnknownVariable, match="no variable 'nobody'"):
        read(cluster, "nobody")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": Rmsprop()}, "Rmsprop moves rows of a table"),
        ({"initial": [1.0]}, "initial value is list"),
        ({"name": "w@0/2"}, "means a part"),
        ({"initial": np.zeros(0, np.float32), "optimizer": Sgd()}, "with elements"),
        (
            {"initial": np.zeros((5000, 2), np.float32), "optimizer": Shampoo()},
            "axes of up to 4096",
        ),
    ],
)
def test_a_bad_variable_is_refused_before_it_is_sent(settings, message):
    with pytest.raises(errors.InvalidSetting, match=message):
        VariableConfig(**({"name": "w", "initial": np.zeros(2, np.float32)} | settings))


def test_lists_scalars_and_doubles_are_taken_for_what_they_are(cluster, name):
    cluster.create_variables(
        VariableConfig(name, np.zeros(2, np.float32)),
        VariableConfig(f"{name}-n", np.zeros((), np.int64)),
    )
    assert cluster.push(add_to_variables={name: [0.5, 1], f"{name}-n": 3})[f"{name}-n"] == 3
    assert read(cluster, name).tolist() == [0.5, 1.0]


def test_parts_of_several_clients_add_up_to_the_last_bit(servers, cluster, name):
    cluster.create_variables(VariableConfig(name, 0 * BIG, Sgd(1.0)))
    clients = [servers.connect() for _ in range(3)]

    def push(client):
        for _ in range(10):
            client.push(variable_gradients={name: np.ones_like(BIG)})

    threads = [threading.Thread(target=push, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(read(cluster, name), np.full_like(BIG, -30))


@pytest.mark.golden("G24")
def test_an_sgd_step_moves_the_variable_and_not_the_copy(cluster, name):
    cluster.create_variables(VariableConfig(name, np.array([5.0], np.float32), Sgd(1.0)))
    with VariableCache(cluster, [name]) as cache:
        assert cache.values[name] == 5
        cluster.push(variable_gradients={name: [1.0]})
        assert (read(cluster, name), cache.values[name]) == (4, 5)
        cache.refresh()
        assert cache.values[name] == 4


@pytest.mark.golden("FeatureUtilsTest.test_apply_gradients_with_dense_optimizer")
def test_rows_and_variables_are_clipped_by_one_norm(cluster, name):
    """The loss is the sum of three embedding columns and the variable.

    Its gradient has norm 2.
    """
    cluster.create_tables(TableConfig(name, (Segment(4, Ones(), Sgd(1.0)),)))
    cluster.create_variables(
        VariableConfig(name, np.ones(1, np.float32), Sgd(1.0)),
        VariableConfig(f"{name}-step", np.array(0)),
    )
    dense, sparse = GradientRecipe(clip_norm=1.0).prepare(
        {name: [1.0]}, {name: [[1.0, 1.0, 1.0, 0.0]]}
    )
    step = cluster.push(
        {name: ([7], sparse[name])}, variable_gradients=dense, add_to_variables={f"{name}-step": 1}
    )
    assert read(cluster, name) == 0.5
    assert cluster.pull({name: [7]}).rows[name].tolist() == [[0.5, 0.5, 0.5, 1.0]]
    assert step[f"{name}-step"] == 1


@pytest.mark.golden("FeatureUtilsTest.test_apply_gradients_with_dense_optimizer_post_push")
def test_dense_gradients_may_go_out_a_step_behind_the_rows(cluster, name):
    """A dense push is made beside the next step; at the end nothing is left."""
    cluster.create_tables(TableConfig(name, (Segment(4, Ones(), Sgd(1.0)),)))
    cluster.create_variables(VariableConfig(name, np.ones(1, np.float32), Sgd(1.0)))
    may_push = threading.Semaphore(0)

    def push_dense(gradients):
        assert may_push.acquire(timeout=60)
        cluster.push(variable_gradients=gradients)

    with BackgroundCalls() as calls:
        for step in range(3):
            dense, sparse = GradientRecipe().prepare({name: [1.0]}, {name: [[1.0, 1.0, 1.0, 0.0]]})
            cluster.push({name: ([7], sparse[name])})
            if step:
                may_push.release()  # the servers have time for the push of the step before
            calls.make(push_dense, dense)

        # The third step has waited for the second push, and not for its own.
        assert read(cluster, name) == -1
        assert cluster.pull({name: [7]}).rows[name].tolist() == [[-2.0, -2.0, -2.0, 1.0]]
        may_push.release()
    assert read(cluster, name) == -2


@pytest.mark.golden("FeatureUtilsTest.test_apply_gradients_without_dense_optimizer")
def test_rows_are_trained_without_any_variable(cluster, name):
    cluster.create_tables(TableConfig(name, (Segment(4, Ones(), Sgd(1.0)),)))
    _, sparse = GradientRecipe().prepare({}, {name: [[1.0, 1.0, 1.0, 0.0]]})
    cluster.push({name: ([7], sparse[name])})
    assert cluster.pull({name: [7]}).rows[name].tolist() == [[0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("num_ps", [2, 3])
def test_a_replaced_ps_gets_its_part_of_a_split_variable_back(tmp_path, num_ps):
    with Servers(tmp_path, num_ps=num_ps) as servers:
        servers.start_controller()
        first = servers.start_ps(0)
        for index in range(1, num_ps):
            servers.start_ps(index)
        cluster = servers.connect()
        cluster.create_variables(VariableConfig("w", BIG, Sgd(1.0)))
        cluster.push(variable_gradients={"w": np.cos(BIG)})
        expected = read(cluster, "w")
        cluster.controller.save()
        epoch = cluster.controller.routing().epoch
        first.stop(GRACE_S)
        servers.start_ps(0)
        replacement = servers.exits["ps-0"]
        wait_until(lambda: replacement.reason or cluster.controller.routing().epoch > epoch)
        assert replacement.reason == ""
        np.testing.assert_array_equal(read(cluster, "w"), expected)
        np.testing.assert_array_equal(expected, BIG - np.cos(BIG))


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_saved_job_goes_on_with_any_number_of_servers(tmp_path, after):
    optimizer = Adam(0.1)
    gradients = [np.sin(BIG + step) for step in range(4)]
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        first = servers.connect()
        first.create_variables(
            VariableConfig("w", BIG, optimizer), VariableConfig("v", BIG[:9], optimizer)
        )
        for step in range(2):
            first.push(
                variable_gradients={"w": gradients[step], "v": gradients[step][:9]}, step=step
            )
        first.controller.save()
    with Servers(tmp_path, num_ps=after) as servers:
        servers.start_all()
        second = servers.connect()
        second.create_variables(
            VariableConfig("w", 0 * BIG, optimizer), VariableConfig("v", 0 * BIG[:9], optimizer)
        )
        for step in range(2, 4):
            second.push(
                variable_gradients={"w": gradients[step], "v": gradients[step][:9]}, step=step
            )
        resumed = second.pull(variables=["w", "v"]).variables
        second.create_variables(VariableConfig("straight", BIG, optimizer))
        for step in range(4):
            second.push(variable_gradients={"straight": gradients[step]}, step=step)
        straight = read(second, "straight")
    np.testing.assert_array_equal(resumed["w"], straight)
    np.testing.assert_array_equal(resumed["v"], straight[:9])


def nonfinite_updates(servers, cluster):
    """Updates left out on all servers, by variable, as their status says."""
    counts = {}
    for address in cluster.controller.routing().addresses:
        with open_channel(address) as channel:
            status = parameter_server_pb2_grpc.ParameterServerStub(channel).GetPsStatus(
                pb.GetPsStatusRequest()
            )
            counts |= dict(status.variables_nonfinite)
    return counts


def test_three_finite_gradients_neither_spoil_a_variable_nor_its_checkpoint(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_variables(VariableConfig("w", np.zeros(2, np.float32), Sgd(1.0)))
        cluster.create_tables(TableConfig("t", (Segment(1, Ones(), Sgd(1.0)),)))
        for _ in range(3):
            gradients = {"t": ([1], np.ones((1, 1), np.float32))}
            cluster.push(gradients, variable_gradients={"w": np.array([-1.5e38, 0], np.float32)})
        np.testing.assert_array_equal(read(cluster, "w"), np.array([3e38, 0], np.float32))
        assert nonfinite_updates(servers, cluster) == {"w": 1}
        np.testing.assert_array_equal(cluster.pull({"t": [1]}).rows["t"], [[-2]])
        cluster.controller.save()
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(read(cluster, "w"), np.array([3e38, 0], np.float32))
        cluster.push(variable_gradients={"w": np.array([3e38, 1], np.float32)})
        np.testing.assert_array_equal(read(cluster, "w"), [0, -1])


def test_ctl_says_how_many_updates_of_variables_were_left_out(tmp_path):
    """Of a whole one, a counter, and one in two parts of which only the second overflows."""
    runner, flags = CliRunner(), ["ctl", "--model-dir", str(tmp_path)]
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_variables(
            VariableConfig("fine", np.zeros(2, np.float32)),
            VariableConfig("count", np.array(2**63 - 1)),
            VariableConfig("split", np.full((90, 1000), 3e38, np.float32)),
        )
        assert "left out" not in runner.invoke(app, [*flags, "tables"]).stdout
        half = np.zeros((90, 1000), np.float32)
        half[-1] = 3e38
        for _ in range(3):
            cluster.push(add_to_variables={"fine": np.ones(2), "count": 1, "split": half})
        assert read(cluster, "count") == 2**63 - 1
        expected = {
            "count": VariableStats(1, 3),
            "fine": VariableStats(1, 0),
            "split": VariableStats(2, 3),
        }
        assert cluster.variable_stats() == expected
        told = json.loads(runner.invoke(app, [*flags, "variables", "--json"]).stdout)
        assert told == {
            name: {"parts": each.parts, "left_out": each.left_out, "missing": 0}
            for name, each in expected.items()
        }
        assert "left out" in runner.invoke(app, [*flags, "variables"]).stdout
        shown = runner.invoke(app, [*flags, "tables"]).stdout
        assert "variable count: 3 updates were left out" in shown
        assert "variable split: 3 updates were left out" in shown
        assert "variable fine" not in shown
        assert json.loads(runner.invoke(app, [*flags, "tables", "--json"]).stdout) == {}


def test_a_job_comes_back_from_a_checkpoint_with_an_infinite_variable(tmp_path):
    """As versions that let variables overflow have written them: every replacement of a ps died of
    it."""
    with Servers(tmp_path) as servers:
        servers.start_controller()
        ps = servers.start_ps(0)
        cluster = servers.connect()
        cluster.create_variables(VariableConfig("w", np.zeros(2, np.float32), Sgd(1.0)))
        (variable,) = ps._store.variables()
        variable.load(np.array([np.inf, 1], np.float32), {})
        cluster.controller.save()
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(read(cluster, "w"), [np.inf, 1])
        cluster.push(variable_gradients={"w": np.ones(2, np.float32)})
        assert nonfinite_updates(servers, cluster) == {"w": 1}
        cluster.push(assign_variables={"w": np.zeros(2, np.float32)})
        cluster.push(variable_gradients={"w": np.ones(2, np.float32)})
        np.testing.assert_array_equal(read(cluster, "w"), [-1, -1])
