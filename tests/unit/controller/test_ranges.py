"""Numbers that no run has are refused at the door: they would be journaled and told to
everybody."""

import json
import math

import pytest

from megalith.controller import codec
from megalith.controller.codec import decode_ps_report, decode_registration, decode_worker_report
from megalith.controller.coordinator import Coordinator
from megalith.controller.members import job_files, journal_file
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.controller.selection.formation import Formation
from megalith.controller.selection.offers import Shape
from megalith.errors import InvalidRequest, NotInCluster
from megalith.protos import common_pb2, coordination_pb2
from megalith.wire.reports import PsReport, WorkerReport

PATIENCE = Patience(silence_s=10.0, suspect_s=5.0, lost_worker_s=60.0)
GREATEST = 2**63 - 1


def register(**changes):
    fields = {
        "role": common_pb2.ROLE_WORKER,
        "index": 1,
        "address": "127.0.0.1:7",
        "incarnation": "a",
    } | changes
    return decode_registration(coordination_pb2.Register(**fields))


@pytest.mark.parametrize("field", ["epoch", "initialized_epoch", "global_step", "first_step"])
@pytest.mark.parametrize("value", [GREATEST, 2**53, -1, -(2**63)])
def test_a_registration_with_a_number_that_no_run_has_is_refused(field, value):
    with pytest.raises(InvalidRequest, match=f"register: {field}={value}: outside"):
        register(**{field: value})
    assert register(**{field: 2**53 - 1})


@pytest.mark.parametrize("heartbeat_s", [1e9, -1.0, math.nan, math.inf])
def test_a_member_whose_death_nobody_would_notice_is_refused(heartbeat_s):
    with pytest.raises(InvalidRequest, match="heartbeat_s"):
        register(heartbeat_s=heartbeat_s)


@pytest.mark.parametrize(
    "address",
    ["here", "here:", ":7", "here:0", "here:65536", "here:7x", "a b:7", "x:" + "9" * 5000],
)
def test_an_address_that_is_not_host_and_port_is_refused(address):
    with pytest.raises(InvalidRequest, match="is not host:port"):
        register(address=address)
    with pytest.raises(InvalidRequest, match="is not host:port"):
        register(metrics_address=address)


def test_endless_texts_of_a_member_are_refused():
    for field in ("incarnation", "job"):
        with pytest.raises(InvalidRequest, match=f"{field}: 5000 characters"):
            register(**{field: "x" * 5000})
    with pytest.raises(InvalidRequest, match="complaint: 5000 characters"):
        decode_ps_report(coordination_pb2.PsReport(complaint="x" * 5000))


@pytest.mark.parametrize(
    "field",
    [
        "global_step",
        "position",
        "total_batches",
        "initialized_epoch",
        "barrier_id",
        "hook_errors",
    ],
)
def test_a_worker_s_report_with_a_number_that_no_run_has_is_refused(field):
    for value in (GREATEST, -1):
        with pytest.raises(InvalidRequest, match=f"worker report: {field}={value}"):
            decode_worker_report(coordination_pb2.WorkerReport(**{field: value}))


def test_endless_failures_of_hooks_are_refused():
    many = coordination_pb2.WorkerReport(hook_failures=["x"] * 5000)
    with pytest.raises(InvalidRequest, match="5000 failures of hooks, at most 256 are taken"):
        decode_worker_report(many)
    long = coordination_pb2.WorkerReport(hook_failures=["x" * 5000])
    with pytest.raises(InvalidRequest, match="a failure of a hook: 5000 characters"):
        decode_worker_report(long)


def test_negative_loads_of_a_ps_are_refused():
    with pytest.raises(InvalidRequest, match="rows=-1"):
        decode_ps_report(coordination_pb2.PsReport(rows=-1))


@pytest.fixture
def cluster():
    cluster = Coordinator(1, 2, patience=PATIENCE)
    ps = cluster.join(Registration(Role.PS, 0, "ps:1", incarnation="ps"), lambda told: None)
    cluster.report_ps(ps, PsReport(is_ready=True))
    return cluster


@pytest.mark.parametrize(
    "claim", [{"epoch": 2**52}, {"initialized_epoch": 2}, {"global_step": 2**52}]
)
def test_a_member_ahead_of_what_its_run_can_have_reached_gets_no_place_and_changes_nothing(
    cluster, claim
):
    before = cluster.journal()
    with pytest.raises(InvalidRequest):
        cluster.join(
            Registration(Role.WORKER, 1, "w:1", incarnation="w", **claim), lambda told: None
        )
    assert cluster.journal() == before
    assert cluster.current_routing().epoch == 1


@pytest.mark.parametrize("claim", [{"initialized_epoch": 2}, {"global_step": 2**52}])
def test_a_report_ahead_of_what_its_run_can_have_reached_changes_nothing(cluster, claim):
    session = cluster.join(Registration(Role.WORKER, 1, "w:1", incarnation="w"), lambda told: None)
    before = cluster.journal()
    with pytest.raises(InvalidRequest):
        cluster.report_worker(session, WorkerReport(has_begun=True, position=7, **claim))
    assert cluster.journal() == before


def test_a_run_does_not_begin_after_the_step_that_it_has_reached(cluster):
    cluster.join(
        Registration(Role.WORKER, 1, "w:1", incarnation="w", first_step=2**52), lambda told: None
    )
    assert cluster.state().first_step == 0


def test_a_shard_that_does_not_exist_is_not_given(tmp_path):
    class NoList:
        def read(self):
            return ()

    formation = Formation(Shape(num_ps=2, num_redundant_ps=1), NoList(), lambda order: ())
    with pytest.raises(NotInCluster, match="holds shard 998; this cluster has shards 0 to 1"):
        formation.offer(Registration(Role.PS, 0, "ps:1", incarnation="a", held_shard=998))
    assert formation.candidates() == []


@pytest.mark.parametrize(
    "poison",
    [{"epoch": GREATEST}, {"global_step": -1}, {"initialized_epoch": 2**60}, {"first_step": 1.5}],
)
def test_a_poisoned_journal_is_set_aside_and_said(cluster, tmp_path, caplog, poison):
    keeper = JournalKeeper(tmp_path, cluster.journal)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=False)
    path = tmp_path / job_files.JOURNAL
    content = json.loads(path.read_text())
    assert journal_file.read(tmp_path) == cluster.journal()
    path.write_text(json.dumps(content | poison))
    assert journal_file.read(tmp_path) is None
    (name,) = poison
    assert f"{name} is {poison[name]}" in caplog.text
    assert not path.exists()
    assert (tmp_path / f"{job_files.JOURNAL}-unusable").exists()


def test_the_reason_of_an_end_is_cut_and_not_refused():
    assert codec.decode_reason("worker-0 failed") == "worker-0 failed"
    cut = codec.decode_reason("x" * 1_000_000)
    assert cut == "x" * 1024 + "... (1000000 characters)"


@pytest.mark.parametrize("name", ["rows", "pushes", "tables", "variables"])
def test_a_count_of_a_ps_that_a_journal_could_not_hold_is_refused(name):
    with pytest.raises(InvalidRequest, match=f"{name}="):
        decode_ps_report(coordination_pb2.PsReport(is_ready=True, **{name: 2**53}))


def test_a_step_or_shard_of_0_is_told_from_none():
    said = {"role": common_pb2.ROLE_PS, "address": "ps:1", "incarnation": "a"}
    none = decode_registration(coordination_pb2.Register(**said))
    zero = decode_registration(coordination_pb2.Register(**said, first_step=0, held_shard=0))
    assert (none.first_step, none.held_shard) == (None, None)
    assert (zero.first_step, zero.held_shard) == (0, 0)
