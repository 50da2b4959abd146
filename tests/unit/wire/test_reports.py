"""Reports arrive as they were sent, whichever fields they have."""

import dataclasses

import pytest

from megalith.protos import coordination_pb2
from megalith.wire import codec
from megalith.wire.pieces import PieceProgress
from megalith.wire.reports import (
    PsReport,
    ReplicaReport,
    RestoreReport,
    TableFreshness,
    WorkerReport,
)


def filled(report, **given):
    """A report with another value in each field, so that none can stand for another."""
    values = {}
    for number, field in enumerate(dataclasses.fields(report), start=1):
        values[field.name] = given.get(field.name) or field.type(number)
    return report(**values)


RESTORED = filled(RestoreReport)
PIECES = (PieceProgress(7, 500), PieceProgress(9, 1000, is_done=True))
WORKER = filled(
    WorkerReport,
    results={"auc": 0.7},
    metrics={"auc": 0.6},
    pieces=PIECES,
    hook_failures=("A.end raised KeyError: 1", "B.end raised KeyError: 2"),
)
PS = filled(PsReport, restored=RESTORED, dropped_tables={"old": 1_790_000_000.5})
TABLES = (filled(TableFreshness), TableFreshness("t", 0.1))
REPLICA = filled(ReplicaReport, tables=TABLES)


@pytest.mark.parametrize("report", [WORKER, WorkerReport()], ids=["filled", "empty"])
def test_a_workers_report_arrives_as_it_was_sent(report):
    message = codec.worker_report_to_proto(report)
    assert codec.worker_report_from_proto(message) == report


@pytest.mark.parametrize("report", [PS, PsReport()], ids=["filled", "empty"])
def test_a_ps_report_arrives_as_it_was_sent(report):
    message = codec.ps_report_to_proto(report)
    assert message.HasField("restored") == (report.restored is not None)
    assert codec.ps_report_from_proto(message) == report


@pytest.mark.parametrize("report", [REPLICA, ReplicaReport()], ids=["filled", "empty"])
def test_a_replicas_report_arrives_as_it_was_sent(report):
    message = codec.replica_report_to_proto(report)
    assert codec.replica_report_from_proto(message) == report


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (WorkerReport, coordination_pb2.WorkerReport),
        (PsReport, coordination_pb2.PsReport),
        (RestoreReport, coordination_pb2.Restored),
        (ReplicaReport, coordination_pb2.ReplicaReport),
        (TableFreshness, coordination_pb2.TableFreshness),
    ],
)
def test_a_report_has_the_fields_of_its_message(report, message):
    names = {field.name for field in dataclasses.fields(report)}
    assert names == set(message.DESCRIPTOR.fields_by_name)
