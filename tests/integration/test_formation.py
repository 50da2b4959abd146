"""Clusters with more ps than they need, and clusters whose addresses the platform prescribes.

Real servers.
"""

import json
from dataclasses import replace

import grpc
import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, errors
from megalith.controller.config import ControllerConfig, ControllerServerSettings
from megalith.controller.members import job_files
from megalith.controller.server import ControllerServer
from megalith.discovery.files import FileDiscovery
from megalith.discovery.settings import DiscoverySettings
from megalith.protos import (
    benchmark_pb2,
    benchmark_pb2_grpc,
    common_pb2,
    coordination_pb2,
    coordination_pb2_grpc,
)
from megalith.ps.config import PsConfig
from megalith.ps.server import PsServer
from megalith.runner.plan import PlannedProcess
from megalith.runner.wiring import wired
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.joining.presence import assigned
from megalith.wire.channel import open_channel
from megalith.wire.status import translated
from support.servers import Servers
from support.waiting import wait_until

TABLE = TableConfig("t", (Segment(2, optimizer=Sgd(1.0)),))
IDS = np.arange(100)


def push_ones(cluster):
    cluster.create_tables(TABLE)
    cluster.push({"t": (IDS, np.full((100, 2), -1.0, np.float32))})


def test_a_redundant_ps_stands_by_and_takes_over_from_the_checkpoint(tmp_path):
    with Servers(tmp_path, num_ps=1, num_redundant_ps=1, takeover_s=0.3) as servers:
        servers.start_controller()
        first = servers.start_ps(0)
        with servers.connect() as cluster:
            job = cluster.controller
            # Whoever comes first gets the shard, so the second comes after it.
            wait_until(lambda: [c.shard for c in job.status().candidates] == [0])
            servers.start_ps(1)
            wait_until(lambda: len(job.status().candidates) == 2)
            push_ones(cluster)
            assert [(c.index, c.shard, c.is_connected) for c in job.status().candidates] == [
                (0, 0, True),
                (1, None, True),
            ]
            job.save()
            first.stop(0.1)
            wait_until(lambda: [c.shard for c in job.status().candidates] == [None, 0])
            wait_until(lambda: job.status().phase != "forming")
            np.testing.assert_array_equal(cluster.pull({"t": IDS}).rows["t"], np.ones((100, 2)))
            assert (tmp_path / "ps_cluster_dir" / "ps_info").read_text() == job.status().members[
                0
            ].address


def test_extra_ps_are_measured_by_the_workers_and_the_others_hold_the_model(tmp_path):
    with Servers(tmp_path, num_ps=2, num_workers=1, num_extra_ps=1, benchmark_s=0.2) as servers:
        servers.start_controller()
        for index in range(3):
            servers.start_ps(index)
        servers.start_worker(0, batch_size=64, num_examples=64 * 20)
        job = servers.connect().controller
        wait_until(lambda: job.status().outcome == "succeeded", what="training to its end")
        candidates = job.status().candidates
        assert all(candidate.rows_per_s > 0 for candidate in candidates)
        assert sorted(c.shard for c in candidates if c.shard is not None) == [0, 1]
        routed = {c.shard: c.address for c in candidates if c.shard is not None}
        assert [m.address for m in job.status().members if m.role == "ps"] == [routed[0], routed[1]]
        for index in range(3):
            wait_until(
                lambda index=index: servers.exits[f"ps-{index}"].reason != "",
                what=f"ps {index} is told to exit",
            )
            assert servers.exits[f"ps-{index}"].status == 0
        with pytest.raises(errors.WrongPlace, match="measured only before that"):
            exchange_with(routed[0])


@pytest.mark.golden("G7")
@pytest.mark.parametrize("override", ["", "1"])
def test_of_two_ps_the_faster_or_the_named_one_is_chosen(tmp_path, override):
    shape = {
        "num_ps": 1,
        "num_workers": 1,
        "num_extra_ps": 1,
        "benchmark_s": 1.0,
        "ps_override": override,
    }
    with Servers(tmp_path, **shape) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index)
        servers.start_worker(0, batch_size=64, num_examples=64)
        job = servers.connect().controller
        wait_until(lambda: job.status().outcome == "succeeded", 100, "training to its end")
        candidates = job.status().candidates
        chosen = [candidate for candidate in candidates if candidate.shard is not None]
        assert [candidate.shard for candidate in chosen] == [0]
        assert all(
            bool(candidate.rows_per_s) == (not override) for candidate in candidates
        )  # measured, or not at all
        if override:
            assert chosen[0].index == 1
        assert (tmp_path / "ps_cluster_dir" / "ps_info").read_text() == chosen[0].address


def exchange_with(address):
    with open_channel(address) as channel, translated("ps"):
        benchmark_pb2_grpc.BenchmarkStub(channel).Exchange(
            benchmark_pb2.ExchangeRequest(), timeout=30
        )


def test_a_ps_of_another_job_is_refused_while_it_would_stand_by(tmp_path):
    with Servers(tmp_path, num_ps=1, num_redundant_ps=1, job="mine") as servers:
        servers.start_controller()
        servers.start_ps(0, membership=servers.membership(job="another"))
        wait_until(lambda: servers.exits["ps-0"].reason)
        assert servers.exits["ps-0"].status == 1
        assert "belongs to job another, this controller runs mine" in servers.exits["ps-0"].reason
        assert servers.connect().controller.status().candidates == ()


def file_discovery(tmp_path):
    return DiscoverySettings(discovery=f"file://{tmp_path / 'discovery'}")


def test_members_find_the_controller_through_the_back_end_and_enter_themselves_there(tmp_path):
    settings = file_discovery(tmp_path)
    with Servers(tmp_path / "model", num_ps=1, discovery=settings) as servers:
        controller = servers.start_controller()
        ps = start_ps(servers, 0, settings)
        wait_until(lambda: servers.connect().controller.status().phase == "running")
        seen = FileDiscovery(tmp_path / "discovery")
        wait_until(
            lambda: (
                seen.query_all() == {"controller": {0: controller.address}, "ps": {0: ps.address}}
            )
        )


def start_ps(servers, index, settings, server=None):
    config = PsConfig(
        index=index, membership=MembershipSettings(heartbeat_s=0.2), discovery=settings
    )
    config = replace(config, server=server or config.server)
    return servers.start(f"ps-{index}", lambda request: PsServer(config, request))


def test_a_process_that_the_controller_refuses_does_not_replace_the_entry_of_the_one_that_lives(
    tmp_path,
):
    settings = file_discovery(tmp_path)
    with Servers(tmp_path / "model", num_ps=1, discovery=settings) as servers:
        servers.start_controller()
        ps = start_ps(servers, 0, settings)
        seen = FileDiscovery(tmp_path / "discovery")
        wait_until(lambda: seen.query("ps") == {0: ps.address})
        first_exit = servers.exits["ps-0"]
        start_ps(servers, 0, settings)
        wait_until(lambda: servers.exits["ps-0"].reason)
        assert "ps-0 is held by a live process" in servers.exits["ps-0"].reason
        assert seen.query("ps") == {0: ps.address}
        assert first_exit.reason == ""


def test_a_second_controller_of_a_registered_job_is_refused_until_the_first_is_gone(tmp_path):
    settings = file_discovery(tmp_path)
    with Servers(tmp_path / "first", num_ps=1, discovery=settings) as servers:
        first = servers.start_controller()
        wait_until(lambda: FileDiscovery(tmp_path / "discovery").query("controller"))
        config = ControllerConfig(
            model_dir=str(tmp_path / "second"),
            server=ControllerServerSettings(port=0, metrics_port=0),
            discovery=settings,
        )
        with pytest.raises(
            errors.IndexTaken,
            match=f"a controller of this job is registered and listens at {first.address}",
        ):
            servers.start("second", lambda request: ControllerServer(config, request))
        first.stop(0.1)
        servers.start("second", lambda request: ControllerServer(config, request))


@pytest.mark.parametrize("kind", ["static", "tf-config", "mlp"])
def test_where_addresses_are_prescribed_every_process_listens_at_its_own(
    kind, tmp_path, monkeypatch
):
    planned = wired(
        f"{kind}:",
        [
            PlannedProcess("controller", "controller", {}),
            PlannedProcess("ps-0", "ps", {"index": 0}),
        ],
    )
    settings = DiscoverySettings(discovery=planned[0].values["discovery"])
    with Servers(tmp_path, num_ps=1, discovery=settings) as servers:
        for name, value in planned[0].environ.items():
            monkeypatch.setenv(name, value)
        _, server = assigned("controller", 0, ControllerServerSettings(metrics_port=0), settings)
        controller = servers.start_controller(server=server)
        for name, value in planned[1].environ.items():
            monkeypatch.setenv(name, value)
        index, server = assigned(
            "ps", 0, PsConfig(membership=servers.membership()).server, settings
        )
        ps = start_ps(servers, index, settings, server)
        wait_until(lambda: servers.connect().controller.status().phase == "running")
        assert settings.open("", "").query_all() == {
            "controller": {0: controller.address},
            "ps": {0: ps.address},
        }
        if kind == "tf-config":
            assert json.loads(planned[1].environ["TF_CONFIG"])["task"] == {"type": "ps", "index": 0}


def test_a_ps_of_a_run_that_has_ended_takes_no_shard(tmp_path):
    job_files.record_ended_run(tmp_path, "over")
    with Servers(tmp_path, num_ps=1, num_workers=1, num_extra_ps=1) as servers:
        controller = servers.start_controller()
        registration = coordination_pb2.Register(
            role=common_pb2.ROLE_PS,
            index=1,
            address="h:1",
            incarnation="old",
            run_id="over",
            held_shard=0,
        )
        with open_channel(controller.address) as channel:
            first = coordination_pb2.SessionRequest(register=registration)
            with pytest.raises(grpc.RpcError, match="has been in run over, which has ended"):
                next(coordination_pb2_grpc.CoordinationStub(channel).Session(iter([first])))
        assert controller._formation._index_by_shard == {}
