"""Real ZooKeeper and Consul servers for tests, and what to do where there is none."""

import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

from megalith.runner.free_ports import free_ports

_ROOT = Path(__file__).parents[2]
_TOOL = _ROOT / "scripts" / "test-services"
_STATE = _ROOT / ".test-services" / "services.json"
_VARIABLES = {"zookeeper": "MEGALITH_TEST_ZOOKEEPER", "consul": "MEGALITH_TEST_CONSUL"}
HOW_TO_START = "start ZooKeeper and Consul with `scripts/test-services start`"


def _started():
    """What `scripts/test-services start` has recorded, by server; empty if it runs nothing."""
    try:
        return json.loads(_STATE.read_text())
    except FileNotFoundError:
        return {}


def server_or_skip(kind):
    """host:port of the server that the environment or `scripts/test-services` names.

    Without one the test is skipped with the way to get one.
    """
    address = address_of(kind)
    if not address:
        pytest.skip(f"no {kind} for tests: {HOW_TO_START}")
    return address


def address_of(kind):
    """host:port of that server; empty if there is none."""
    named = os.environ.get(_VARIABLES[kind])
    return named or _started().get(kind, {}).get("address", "")


def can_start_zookeeper():
    """May a test start servers of its own?

    Only where somebody has asked for servers: the first start may install packages.
    """
    return "zookeeper" in _started()


def fresh_job():
    """A job name that no other test uses, so that tests share a server."""
    return f"test-{secrets.token_hex(4)}"


class OwnZooKeeper:
    """A ZooKeeper server that a test may kill and start again."""

    def __init__(self, directory):
        if not can_start_zookeeper():
            pytest.skip(f"no zookeeper for tests: {HOW_TO_START}")
        self._directory = Path(directory)
        (self.port,) = free_ports(1)  # nobody gets it while the server is dead

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        self._run("start", "--port", str(self.port))

    def kill(self):
        """kill -9; the data stays."""
        self._run("kill")

    def forget(self):
        """Remove the data of a dead server: the next one knows no session and no node."""
        shutil.rmtree(self._directory / "zookeeper" / "data")

    def close(self):
        self._run("stop")

    def _run(self, verb, *options):
        command = [str(_TOOL), verb, "zookeeper", "--dir", str(self._directory), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
