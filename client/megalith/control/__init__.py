"""Control of a running job: its controller, its AppMaster, and what they report.

from megalith.control import Controller

controller = Controller(None, model_dir="model", timeout_s=60)
print(controller.status().phase)
controller.stop(reason="look at the data")
controller.resume()
"""

from megalith.control.appmaster import (
    Application,
    AppMaster,
    SavepointStatus,
    SupervisedProcess,
    Verdict,
)
from megalith.control.controller import Controller
from megalith.control.replica import ReplicaControl, ReplicaVersion
from megalith.control.status import (
    BarrierHolder,
    BarrierStatus,
    ClusterStatus,
    LastSave,
    LossReport,
    MemberStatus,
    PsCandidate,
    ReplicaStatus,
    SaveProgress,
    SaveResult,
)
from megalith.wire.reports import ReplicaReport, RestoreReport, TableFreshness

__all__ = [
    "AppMaster",
    "Application",
    "BarrierHolder",
    "BarrierStatus",
    "ClusterStatus",
    "Controller",
    "LastSave",
    "LossReport",
    "MemberStatus",
    "PsCandidate",
    "ReplicaControl",
    "ReplicaReport",
    "ReplicaStatus",
    "ReplicaVersion",
    "RestoreReport",
    "SaveProgress",
    "SaveResult",
    "SavepointStatus",
    "SupervisedProcess",
    "TableFreshness",
    "Verdict",
]
