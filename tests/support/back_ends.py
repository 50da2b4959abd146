"""Real ZooKeeper and Consul servers for tests, and what to do where there is none."""

import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from megalith.runtime.free_ports import free_ports

_VARIABLES = {"zookeeper": "MEGALITH_TEST_ZOOKEEPER", "consul": "MEGALITH_TEST_CONSUL"}
_START = {
    "zookeeper": "../shared/tools/zookeeper-server start /tmp/zookeeper 2181",
    "consul": "../shared/tools/consul-agent start /tmp/consul 8500",
}


def server_or_skip(kind):
    """host:port of the server that the environment names; without one the test is skipped with the way to get one."""
    variable = _VARIABLES[kind]
    if not os.environ.get(variable):
        port = _START[kind].rpartition(" ")[2]
        pytest.skip(f"{variable} is not set; {_START[kind]} && export {variable}=127.0.0.1:{port}")
    return os.environ[variable]


def fresh_job():
    """A job name that no other test uses, so that tests share a server."""
    return f"test-{secrets.token_hex(4)}"


class OwnZooKeeper:
    """A ZooKeeper server that a test may kill, through the tool that MEGALITH_TEST_ZOOKEEPER_TOOL names."""

    def __init__(self, directory):
        self._tool = os.environ.get("MEGALITH_TEST_ZOOKEEPER_TOOL", "")
        if not self._tool:
            pytest.skip(
                "MEGALITH_TEST_ZOOKEEPER_TOOL is not set; export it as ../shared/tools/zookeeper-server"
            )
        self._directory, (self.port,) = (
            Path(directory),
            free_ports(1),
        )  # nobody gets it while the server is dead

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        command = [self._tool, "start", str(self._directory), str(self.port)]
        subprocess.run(command, check=True, capture_output=True, timeout=90)

    def kill(self):
        """kill -9; the data stays."""
        os.kill(int((self._directory / "zookeeper.pid").read_text()), signal.SIGKILL)

    def forget(self):
        """Remove the data of a dead server: the next one knows no session and no node."""
        shutil.rmtree(self._directory / "data")

    def close(self):
        subprocess.run(
            [self._tool, "stop", str(self._directory)], check=True, capture_output=True, timeout=60
        )
