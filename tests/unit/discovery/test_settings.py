import sys

import pytest

from megalith.discovery.consul_agent import agent_address
from megalith.discovery.files import FileDiscovery
from megalith.discovery.settings import DiscoverySettings
from megalith.discovery.tf_config import TfConfigDiscovery
from megalith.discovery.zookeeper_client import server_list
from megalith.errors import InvalidSetting

TF_CONFIG = '{"cluster": {"ps": ["h:1"]}, "task": {"type": "ps", "index": 0}}'


@pytest.mark.golden("G10")
def test_the_kind_decides_the_back_end(tmp_path):
    assert DiscoverySettings().open("", "") is None
    assert isinstance(DiscoverySettings(discovery="file:").open("", str(tmp_path)), FileDiscovery)
    primus = DiscoverySettings(discovery="tf-config:").open("", "", {"TF_CONFIG": TF_CONFIG})
    assert isinstance(primus, TfConfigDiscovery)
    for url, name in {
        "consul:": "ConsulDiscovery",
        "zookeeper://127.0.0.1:1": "ZooKeeperDiscovery",
    }.items():
        opened = DiscoverySettings(discovery=url).open("job", "", {})
        assert type(opened).__name__ == name
        opened.close()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"discovery": "zk"}, "--discovery=zk: expected one of none, file, zookeeper"),
        ({"discovery": "zookeeper:// , /job"}, "it names no server"),
        ({"discovery": "zookeeper://zk1/job?ttl_s=-1.0"}, "ttl_s=-1.0 is not above 0"),
    ],
)
def test_wrong_settings_are_named(values, why):
    with pytest.raises(InvalidSetting, match=why):
        DiscoverySettings(**values).check("", "")


@pytest.mark.parametrize(
    ("url", "job", "why"),
    [
        ("zookeeper://zk1", "", "--job=''"),
        ("consul:", "a/b", "--job='a/b'"),
        ("file:", "job", "needs --model-dir, or the directory in the URL"),
    ],
)
def test_a_back_end_without_the_name_or_directory_that_it_needs_is_refused(url, job, why):
    with pytest.raises(InvalidSetting, match=why):
        DiscoverySettings(discovery=url).open(job, "")


@pytest.mark.parametrize(("kind", "package"), [("zookeeper", "kazoo"), ("consul", "consul")])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(kind, package, monkeypatch):
    monkeypatch.delitem(sys.modules, f"megalith.discovery.{kind}", raising=False)
    monkeypatch.delattr(f"megalith.discovery.{kind}", raising=False)
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Missing(package), *sys.meta_path])
    with pytest.raises(InvalidSetting, match=rf"needs {package}.*pip install 'megalith\[{kind}\]'"):
        DiscoverySettings(discovery=f"{kind}://h:1").open("j", "")


class Missing:
    """Finds nothing of a package that is installed."""

    def __init__(self, package):
        self._package = package

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_the_environment_says_where_the_consul_agent_is():
    assert agent_address({}, "/nowhere") == "127.0.0.1:2280"
    assert agent_address({"TCE_HOST_IP": "10.0.0.1"}, "/nowhere") == "10.0.0.1:2280"
    both = {"TCE_HOST_IP": "10.0.0.1", "CONSUL_HTTP_HOST": "::1", "CONSUL_HTTP_PORT": "8500"}
    assert agent_address(both) == "[::1]:8500"
    assert agent_address({"CONSUL_HTTP_HOST": "/run/consul.sock"}) == "/run/consul.sock"


@pytest.mark.parametrize(
    ("servers", "environ", "expected"),
    [
        ("10.0.0.1, 10.0.0.2:2182", {"MY_HOST_IP": "10.9.9.9"}, "10.0.0.1:2181,10.0.0.2:2182"),
        ("10.0.0.1,[fd00::1],zk:99", {"MY_HOST_IP": "10.9.9.9"}, "10.0.0.1:2181,zk:99"),
        (
            "10.0.0.1,[fd00::1]:2182,fd00::2,zk",
            {"MY_HOST_IPV6": "fd00::9"},
            "[fd00::1]:2182,[fd00::2]:2181,zk:2181",
        ),
        ("10.0.0.1", {"MY_HOST_IPV6": "fd00::9"}, "10.0.0.1:2181"),
    ],
)
def test_zookeeper_servers_of_the_family_that_this_machine_has(servers, environ, expected):
    assert server_list(servers, environ) == expected
