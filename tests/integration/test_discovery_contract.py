"""What holds for every discovery back end.

The dynamic ones against real servers and a real directory.
"""

import json

import pytest

from megalith.discovery.files import FileDiscovery
from megalith.discovery.mlp import MlpDiscovery
from megalith.discovery.static import StaticDiscovery
from megalith.discovery.tf_config import TfConfigDiscovery
from megalith.errors import InvalidRequest
from support.back_ends import fresh_job, server_or_skip
from support.waiting import wait_until

PS = {0: "10.0.0.1:1000", 1: "10.0.0.2:1000"}
WORKERS = {0: "10.0.0.3:1000", 1: "10.0.0.4:1000", 2: "[::1]:1000"}
CONTROLLER = {0: "ctl.example.org:7600"}
ENTRIES = {"controller": CONTROLLER, "ps": PS, "worker": WORKERS}
DYNAMIC = ("file", "zookeeper", "consul")
PRESCRIBED = ("static", "tf-config", "mlp")


def static(_open_here):
    listed = (f"{name}={','.join(entries.values())}" for name, entries in ENTRIES.items())
    return StaticDiscovery(";".join(listed))


def tf_config(_open_here):
    cluster = {name: list(entries.values()) for name, entries in ENTRIES.items()}
    return TfConfigDiscovery(json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))


def mlp(_open_here):
    variables = {"MLP_ROLE": "ps"}
    for name, entries in ENTRIES.items():
        variables[f"MLP_{name.upper()}_NUM"] = str(len(entries))
        for index, address in entries.items():
            host, _, port = address.rpartition(":")
            variables[f"MLP_{name.upper()}_{index}_HOST"] = host.strip("[]")
            variables[f"MLP_{name.upper()}_{index}_PORT"] = port
    return MlpDiscovery(variables, port_timeout_s=0.0, probe=lambda asked: Everybody())


class Everybody:
    dead = ()


def zookeeper(job):
    from megalith.discovery.zookeeper import ZooKeeperDiscovery

    return ZooKeeperDiscovery(server_or_skip("zookeeper"), job, retry_delay_s=0.1)


def consul(job):
    from megalith.discovery.consul import ConsulDiscovery

    return ConsulDiscovery(server_or_skip("consul"), job, poll_s=0.02, retry_wait_s=0.1)


@pytest.fixture
def open_discovery(request, tmp_path):
    """A function that opens the back end of this test once more, as another process of the same job
    would."""
    kind, job, opened = request.param, fresh_job(), []

    def open_one():
        back_ends = {
            "static": static,
            "tf-config": tf_config,
            "mlp": mlp,
            "zookeeper": zookeeper,
            "consul": consul,
        }
        opened.append(FileDiscovery(tmp_path) if kind == "file" else back_ends[kind](job))
        return opened[-1]

    yield open_one
    for discovery in opened:
        discovery.close()


def over(*kinds):
    return pytest.mark.parametrize("open_discovery", kinds, indirect=True)


def shows(discovery, entries):
    wait_until(
        lambda: discovery.query_all() == entries, what=f"{discovery.query_all()} becomes {entries}"
    )


@over(*DYNAMIC, *PRESCRIBED)
def test_what_every_process_registers_all_of_them_see(open_discovery):
    here, there = open_discovery(), open_discovery()
    for name, entries in ENTRIES.items():
        for index, address in entries.items():
            here.register(name, index, address)
    for discovery in (here, there):
        shows(discovery, ENTRIES)
        for name, entries in ENTRIES.items():
            assert discovery.query(name) == entries
            assert list(discovery.query(name)) == sorted(entries)


@over(*DYNAMIC, *PRESCRIBED)
def test_a_deregistered_entry_is_gone_and_can_come_back(open_discovery):
    discovery = open_discovery()
    discovery.register("ps", 0, PS[0])
    discovery.register("ps", 1, PS[1])
    discovery.deregister("ps", 1, PS[1])
    wait_until(lambda: discovery.query("ps") == {0: PS[0]})
    discovery.deregister("ps", 1, PS[1])  # twice is safe
    discovery.register("ps", 1, PS[1])
    wait_until(lambda: discovery.query("ps") == PS)


@over(*DYNAMIC, *PRESCRIBED)
def test_names_indices_and_addresses_are_checked(open_discovery):
    discovery = open_discovery()
    with pytest.raises(InvalidRequest, match="name must be one of controller/ps/worker"):
        discovery.query("chief")
    with pytest.raises(InvalidRequest, match="below 0"):
        discovery.register("ps", -1, PS[0])
    for nonsense in (
        "",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "h:x",
        ":80",
        "a b:80",
        "::1:80",
        "h\n:1",
        "[h]:1",
    ):
        with pytest.raises(InvalidRequest, match="not host:port"):
            discovery.register("ps", 0, nonsense)


@over(*DYNAMIC, *PRESCRIBED)
def test_an_answer_belongs_to_who_asked(open_discovery):
    discovery = open_discovery()
    discovery.register("ps", 0, PS[0])
    wait_until(lambda: discovery.query("ps"))
    discovery.query("ps").clear()
    discovery.query_all()["ps"].clear()
    assert 0 in discovery.query("ps")


@pytest.mark.golden("G12")
@over(*DYNAMIC, *PRESCRIBED)
def test_deregister_all_empties(open_discovery):
    here, there = open_discovery(), open_discovery()
    here.register("ps", 0, PS[0])
    there.register("worker", 0, WORKERS[0])
    here.deregister_all()
    shows(here, {})


@over(*DYNAMIC, *PRESCRIBED)
def test_cleaning_up_leaves_live_entries_alone(open_discovery):
    discovery = open_discovery()
    discovery.register("ps", 0, PS[0])
    discovery.clean_up()
    wait_until(lambda: 0 in discovery.query("ps"))


@over(*DYNAMIC, *PRESCRIBED)
def test_closing_twice_is_safe(open_discovery):
    discovery = open_discovery()
    discovery.close()
    discovery.close()


@pytest.mark.golden("G12")
@over(*DYNAMIC)
def test_the_same_index_registered_again_has_the_new_address(open_discovery):
    old, new = open_discovery(), open_discovery()
    old.register("ps", 0, "10.0.0.1:1000")
    shows(new, {"ps": {0: "10.0.0.1:1000"}})
    new.register("ps", 0, "10.0.0.9:1000")
    for discovery in (old, new):
        shows(discovery, {"ps": {0: "10.0.0.9:1000"}})


@over(*DYNAMIC)
def test_who_was_replaced_cannot_deregister_its_successor(open_discovery):
    old, new = open_discovery(), open_discovery()
    old.register("ps", 0, "10.0.0.1:1000")
    new.register("ps", 0, "10.0.0.9:1000")
    old.deregister("ps", 0, "10.0.0.1:1000")
    old.close()
    shows(new, {"ps": {0: "10.0.0.9:1000"}})


@pytest.mark.golden("G12")
@over(*DYNAMIC)
def test_ps_and_worker_are_independent(open_discovery):
    discovery = open_discovery()
    discovery.register("ps", 0, PS[0])
    discovery.register("worker", 0, WORKERS[0])
    discovery.deregister("ps", 0, PS[0])
    shows(discovery, {"worker": {0: WORKERS[0]}})
    assert discovery.query("ps") == {}


@over(*DYNAMIC)
def test_closing_gives_up_the_own_entries_only(open_discovery):
    here, there = open_discovery(), open_discovery()
    here.register("ps", 0, PS[0])
    there.register("ps", 1, PS[1])
    shows(there, {"ps": PS})
    here.close()
    shows(there, {"ps": {1: PS[1]}})


@over(*DYNAMIC)
def test_an_empty_registry_has_no_entries(open_discovery):
    assert open_discovery().query_all() == {}


@over(*PRESCRIBED)
def test_a_prescribed_cluster_refuses_who_is_not_in_it(open_discovery):
    discovery = open_discovery()
    with pytest.raises(InvalidRequest, match="ps-2 is not in the prescribed cluster of 2"):
        discovery.register("ps", 2, PS[0])
    with pytest.raises(
        InvalidRequest, match=r"ps-1 must listen at 10.0.0.2:1000, not at 10.0.0.1:1000"
    ):
        discovery.register("ps", 1, PS[0])
