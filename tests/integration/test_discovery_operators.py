"""Operators and the AppMaster find a controller through the discovery back end."""

import json
from contextlib import closing

import pytest
from click.testing import CliRunner

from megalith.appmaster.config import AppMasterConfig, AppMasterServerSettings
from megalith.appmaster.server import AppMasterServer
from megalith.cli.app import app as cli_app
from megalith.control import AppMaster
from megalith.discovery.settings import DiscoverySettings
from support.back_ends import fresh_job, server_or_skip
from support.servers import Servers
from support.waiting import wait_until


@pytest.mark.parametrize("kind", ["file", "zookeeper", "consul"])
def test_operators_and_the_appmaster_find_the_controller_through_the_back_end(tmp_path, kind):
    job = fresh_job()
    where = tmp_path / "discovery" if kind == "file" else server_or_skip(kind)
    settings = DiscoverySettings(discovery=f"{kind}://{where}")
    ctl = ["ctl", "--timeout-s", "60", "--discovery", f"{kind}://{where}", "--job", job]
    with Servers(tmp_path / "model", num_ps=1, job=job, discovery=settings) as servers:
        controller = servers.start_controller()
        shown = CliRunner().invoke(cli_app, [*ctl, "status", "--json"])
        assert json.loads(shown.stdout)["address"] == controller.address, shown.stderr
        assert CliRunner().invoke(cli_app, [*ctl, "stop"]).stdout == "training is held\n"
        config = AppMasterConfig(
            job=job,
            discovery=settings,
            server=AppMasterServerSettings(port=0, metrics_port=0),
            join_timeout_s=60.0,
        )
        appmaster = servers.start("appmaster", lambda request: AppMasterServer(config, request))
        with closing(AppMaster(appmaster.address, None, 60.0)) as operator:
            wait_until(lambda: operator.status().controller == controller.address)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--discovery", "zookeeper://zk1"], "--discovery=zookeeper://zk1 needs a name"),
        (["--discovery", "zokeeper"], "--discovery=zokeeper: expected one of"),
        (["--discovery", "zookeeper"], "write --discovery zookeeper://127.0.0.1:2181"),
        (["--zk-servers", "a,b"], "--zk-servers is gone; write --discovery zookeeper://a,b"),
    ],
)
def test_ctl_names_a_back_end_that_cannot_be_asked_in_one_line(flags, line):
    asked = CliRunner().invoke(cli_app, ["ctl", *flags, "status"])
    assert (asked.exit_code, asked.stdout, len(asked.stderr.splitlines())) == (2, "", 1)
    assert line in asked.stderr


def test_ctl_app_does_not_take_the_model_directory_of_another_job(tmp_path):
    ctl = ["ctl", "--discovery", f"file://{tmp_path}", "--timeout-s", "0.2", "app"]
    asked = CliRunner().invoke(cli_app, [*ctl, "status"])
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "name it with --appmaster or --model-dir" in asked.stderr
    asked = CliRunner().invoke(cli_app, [*ctl, "--model-dir", str(tmp_path), "status"])
    assert f"no appmaster_server_addr.txt in {tmp_path}" in asked.stderr


@pytest.mark.parametrize("is_default_dir", [True, False])
def test_ctl_says_that_no_controller_is_registered(tmp_path, monkeypatch, is_default_dir):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    url = "file:" if is_default_dir else f"file://{tmp_path}"
    flags = ["--timeout-s", "0.2", "--discovery", url]
    asked = CliRunner().invoke(cli_app, ["ctl", *flags, "status"], prog_name="megalith")
    assert asked.exit_code == 1
    assert (
        asked.stderr
        == "megalith ctl status: no controller is registered; is a controller running? [UNAVAILABLE]\n"
    )
