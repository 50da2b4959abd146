import json

import pytest

from megalith.discovery.interface import Assignment
from megalith.discovery.static import StaticDiscovery
from megalith.discovery.tf_config import TfConfigDiscovery
from megalith.errors import InvalidSetting

CLUSTER = {
    "chief": ["host0:2222"],
    "ps": ["host1:2222", "host2:2222"],
    "worker": ["host3:2222", "host4:2222", "host5:2222"],
}


def tf_config(cluster, kind, index):
    return TfConfigDiscovery(
        json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    )


@pytest.mark.golden("G12")
def test_in_tf_config_a_chief_is_worker_0_and_the_others_move_up():
    discovery = tf_config(CLUSTER, "worker", 1)
    assert discovery.query("worker") == {
        0: "host0:2222",
        1: "host3:2222",
        2: "host4:2222",
        3: "host5:2222",
    }
    assert discovery.query("ps") == {0: "host1:2222", 1: "host2:2222"}
    assert (discovery.address, discovery.server_type, discovery.index) == (
        "host4:2222",
        "worker",
        2,
    )
    assert discovery.assignment("worker", 0) == Assignment("worker", 2, "host4:2222")


def test_tf_config_the_chief_is_worker_0_and_without_one_indices_stay():
    assert tf_config(CLUSTER, "chief", 0).assignment("worker", 5) == Assignment(
        "worker", 0, "host0:2222"
    )
    without = {"ps": CLUSTER["ps"], "worker": CLUSTER["worker"]}
    assert tf_config(without, "worker", 1).assignment("worker", 0) == Assignment(
        "worker", 1, "host4:2222"
    )


def test_tf_config_a_controller_may_be_listed_or_started_beside_the_tasks():
    discovery = tf_config({**CLUSTER, "controller": ["host9:7600"]}, "ps", 0)
    assert discovery.query("controller") == {0: "host9:7600"}
    assert tf_config(CLUSTER, "chief", 0).assignment("controller", 0) is None


def test_tf_config_started_as_the_wrong_service_says_which_is_right():
    with pytest.raises(InvalidSetting, match="this task is a ps; start it as megalith ps"):
        tf_config(CLUSTER, "ps", 0).assignment("worker", 0)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "[]",
            "{}",
            '{"cluster": {}}',
            '{"cluster": [], "task": {"type": "ps", "index": 0}}',
        ),
        json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": 2}}),
        json.dumps({"cluster": CLUSTER, "task": {"type": "ps", "index": -1}}),
        json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}),
        json.dumps({"cluster": {"ps": ["nonsense"]}, "task": {"type": "ps", "index": 0}}),
    ],
)
def test_a_wrong_tf_config_is_named(text):
    with pytest.raises(InvalidSetting, match="TF_CONFIG"):
        TfConfigDiscovery(text)


def test_static_every_process_has_its_address():
    discovery = StaticDiscovery("controller=c:7600; ps=a:1,[::1]:2")
    assert discovery.assignment("ps", 1) == Assignment("ps", 1, "[::1]:2")
    with pytest.raises(InvalidSetting, match="names no worker-0"):
        discovery.assignment("worker", 0)


@pytest.mark.parametrize(
    "text", ["", " ; ", "ps", "ps=", "chief=a:1", "ps=a", "ps=a:1,,b:2", "ps=a:1;ps=b:2"]
)
def test_a_wrong_static_cluster_is_named(text):
    with pytest.raises(InvalidSetting, match="--discovery=static"):
        StaticDiscovery(text)
