import pytest

from megalith.discovery.interface import Assignment
from megalith.discovery.liveness import Liveness
from megalith.discovery.mlp import MlpDiscovery, MlpEnvironment
from megalith.errors import DiscoveryFailed, InvalidRequest, InvalidSetting

ENVIRON = {
    "MLP_ROLE": " 'worker' ",
    "MLP_ROLE_INDEX": "1",
    "MLP_PORT": "2222",
    "MLP_PS_NUM": "2",
    "MLP_PS_0_HOST": "ps0",
    "MLP_PS_0_PORT": "1",
    "MLP_PS_1_HOST": "secondary",
    "MLP_PS_1_PRIMARY_HOST": "ps1",
    "MLP_PS_1_PORT": '"2"',
    "MLP_WORKER_NUM": "2",
    "MLP_WORKER_0_HOST": "w0",
    "MLP_WORKER_0_PORT": "10",
    "MLP_WORKER_1_HOST": "w1",
    "MLP_WORKER_1_PORT": "11",
    "YARN_INET_ADDR": "10.1.1.1",
    "PATH": "/bin",
}


def nobody(asked):
    return Liveness((), tuple(asked))


def everybody(asked):
    return Liveness(tuple(asked), ())


def test_roles_and_addresses_come_from_the_variables():
    discovery = MlpDiscovery(ENVIRON, probe=everybody)
    assert discovery.query("ps") == {0: "ps0:1", 1: "ps1:2"}
    assert discovery.query("worker") == {0: "w0:10", 1: "w1:11"}
    assert discovery.query("controller") == {}
    assert discovery.assignment("worker", 0) == Assignment("worker", 1, "w1:11")
    with pytest.raises(InvalidSetting, match="this is a WORKER; start it as megalith worker"):
        discovery.assignment("ps", 0)


def test_a_query_for_ps_names_those_whose_port_does_not_answer_and_query_all_does_not_ask():
    discovery = MlpDiscovery(ENVIRON, port_timeout_s=0.0, probe=nobody)
    with pytest.raises(DiscoveryFailed, match="ps0:1,ps1:2 connect error!"):
        discovery.query("ps")
    assert discovery.query("worker") == {0: "w0:10", 1: "w1:11"}
    assert discovery.query_all()["ps"] == {0: "ps0:1", 1: "ps1:2"}


def test_a_process_may_know_itself_under_another_name_but_not_on_another_port():
    discovery = MlpDiscovery(ENVIRON, probe=everybody)
    for host in ("w1", "localhost", "127.0.0.1", "0.0.0.0", "10.1.1.1"):
        discovery.deregister("worker", 1, f"{host}:11")
        assert discovery.query("worker") == {0: "w0:10"}
        discovery.register("worker", 1, f"{host}:11")
    with pytest.raises(InvalidRequest, match="worker-1 must listen at w1:11"):
        discovery.register("worker", 1, "w1:12")
    with pytest.raises(InvalidRequest, match="worker-1 must listen at w1:11"):
        discovery.register("worker", 1, "elsewhere:11")


def test_under_mpi_rank_size_and_local_size_decide():
    mpi = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    discovery = MlpDiscovery({**ENVIRON, **mpi}, probe=everybody)
    assert discovery.query("worker") == {0: "w0:10", 1: "w0:11", 2: "w1:12", 3: "w1:13"}
    assert discovery.assignment("worker", 0) == Assignment("worker", 3, "w1:13")
    assert MlpEnvironment({**ENVIRON, **mpi}).port == 2225


def test_a_chief_is_worker_0():
    chief = {"MLP_CHIEF_NUM": "1", "MLP_CHIEF_0_HOST": "c0", "MLP_CHIEF_0_PORT": "9"}
    discovery = MlpDiscovery({**ENVIRON, **chief}, probe=everybody)
    assert discovery.query("worker") == {0: "c0:9", 1: "w0:10", 2: "w1:11"}
    assert discovery.assignment("worker", 0) == Assignment("worker", 2, "w1:11")


def test_wrong_or_missing_variables_are_named():
    with pytest.raises(InvalidSetting, match="MLP_<ROLE>_NUM"):
        MlpDiscovery({"PATH": "/bin"})
    with pytest.raises(InvalidSetting, match="MLP_PS_NUM='two': expected a number"):
        MlpDiscovery({**ENVIRON, "MLP_PS_NUM": "two"})
    with pytest.raises(InvalidSetting, match="MLP_PS_2_HOST"):
        MlpDiscovery({**ENVIRON, "MLP_PS_NUM": "3"})


@pytest.mark.parametrize("role", ["dispatcher", "DSWORKER"])
def test_a_role_of_the_data_service_only_waits_for_worker_0(role):
    environ = {**ENVIRON, "MLP_ROLE": role, f"MLP_{role.upper()}_NUM": "1"}
    assert MlpDiscovery(environ).only_waits_for == "w0:10"
    assert MlpDiscovery({**environ, "MLP_SSH_PORT": "22"}).only_waits_for == "w0:22"
    chief = {"MLP_CHIEF_NUM": "1", "MLP_CHIEF_0_HOST": "c0", "MLP_CHIEF_0_PORT": "9"}
    assert MlpDiscovery({**environ, **chief}).only_waits_for == "c0:9"
    with pytest.raises(InvalidSetting, match="waits for worker 0, and MLP_WORKER_NUM is not set"):
        _ = MlpDiscovery({**environ, "MLP_WORKER_NUM": "0"}).only_waits_for


@pytest.mark.parametrize("role", ["worker", "ps", "chief"])
def test_other_roles_have_work(role):
    assert MlpDiscovery({**ENVIRON, "MLP_ROLE": role}).only_waits_for == ""
