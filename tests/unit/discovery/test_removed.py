"""A flag or variable that is gone names the URL that says the same."""

import os

import pytest
from click.testing import CliRunner

from megalith.cli.app import app
from megalith.discovery.settings import DiscoverySettings
from megalith.errors import InvalidSetting
from megalith.runner.config import RunnerConfig
from megalith.runtime.config.settings import refuse_removed

CASES = {
    "--zk-servers zk1,zk2": "--zk-servers is gone; write --discovery zookeeper://zk1,zk2",
    "--discovery zookeeper --zk-servers=zk1": (
        "--zk-servers is gone; write --discovery zookeeper://zk1"
    ),
    "--discovery zookeeper --discovery-ttl-s 5": (
        "--discovery-ttl-s is gone; write --discovery 'zookeeper://127.0.0.1:2181?ttl_s=5'"
    ),
    "--discovery consul --consul [::1]:8500 --discovery-ttl-s 5": (
        "--consul and --discovery-ttl-s are gone; write --discovery 'consul://[::1]:8500?ttl_s=5'"
    ),
    "--consul /run/consul.sock": (
        "--consul is gone; write --discovery consul+unix:///run/consul.sock"
    ),
    "--discovery file --discovery-dir /shared": (
        "--discovery-dir is gone; write --discovery file:///shared"
    ),
    "--discovery-dir shared": (
        f"--discovery-dir is gone; write --discovery file://{os.getcwd()}/shared"
    ),
    "--static-cluster controller=h:1;ps=h:2": (
        "--static-cluster is gone; write --discovery 'static:controller=h:1;ps=h:2'"
    ),
    "--discovery zookeeper://zk1/job --discovery-ttl-s 5": (
        "--discovery-ttl-s is gone; write --discovery 'zookeeper://zk1/job?ttl_s=5'"
    ),
}


@pytest.mark.parametrize("line", CASES)
def test_a_flag_that_is_gone_names_the_url_to_write(line):
    with pytest.raises(InvalidSetting) as raised:
        refuse_removed(DiscoverySettings, "MEGALITH_PS_", line.split(), {})
    assert str(raised.value) == CASES[line]


def test_a_variable_that_is_gone_names_the_variable_to_set():
    environ = {"MEGALITH_RUNNER_ZK_SERVERS": "zk1", "MEGALITH_RUNNER_DISCOVERY": "zookeeper"}
    with pytest.raises(InvalidSetting) as raised:
        RunnerConfig.load(environ=environ)
    assert str(raised.value) == (
        "MEGALITH_RUNNER_ZK_SERVERS is gone; write MEGALITH_RUNNER_DISCOVERY=zookeeper://zk1"
    )


def test_on_the_command_line_it_is_one_line_and_exit_status_2():
    for line in (
        "up --zk-servers zk1",
        "ctl --zk-servers zk1 status",
        "ctl status --zk-servers zk1",
    ):
        done = CliRunner().invoke(app, line.split(), prog_name="megalith")
        assert done.exit_code == 2
        assert done.stderr.startswith("megalith ")
        assert done.stderr.endswith(": --zk-servers is gone; write --discovery zookeeper://zk1\n")
        assert done.stderr.count("\n") == 1
