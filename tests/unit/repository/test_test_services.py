"""`scripts/test-services`, as far as it can be tried without a server."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*arguments):
    """Run the script to its end: (status, stdout, stderr)."""
    command = ["scripts/test-services", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_help_names_every_verb():
    status, stdout, stderr = run("--help")
    assert (status, stderr) == (0, "")
    for verb in ("start", "stop", "env"):
        assert f"scripts/test-services {verb} " in stdout


@pytest.mark.parametrize("arguments", [("begin",), ("start", "etcd"), ("start", "--port", 1)])
def test_a_wrong_command_line_is_refused_with_the_usage(arguments):
    status, stdout, stderr = run(*arguments)
    assert (status, stdout) == (2, "")
    assert stderr.startswith("usage: scripts/test-services")


def test_env_without_servers_names_the_command_that_starts_them(tmp_path):
    status, stdout, stderr = run("env", "--dir", tmp_path)
    assert (status, stdout) == (1, "")
    assert "scripts/test-services start" in stderr


def test_stop_without_servers_succeeds_and_says_nothing(tmp_path):
    assert run("stop", "--dir", tmp_path / "none") == (0, "", "")
    assert run("stop", "--dir", tmp_path) == (0, "", "")
