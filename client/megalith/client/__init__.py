"""The Megalith SDK: train against a running cluster from NumPy, and control it.

import megalith.client as mg

with mg.connect(model_dir="model") as cluster:
    cluster.create_tables(mg.TableConfig("user", (mg.Segment(8, optimizer=mg.Adagrad(0.05)),)))
    rows = cluster.pull({"user": ids}).rows["user"]
    cluster.push({"user": (ids, gradients)})
"""

from megalith.client._cluster import Cluster, Pulled, connect
from megalith.client._controller import ClusterStatus, Controller, Member, SavedCheckpoint
from megalith.wire import errors
from megalith.wire.schema import Adagrad, RandomUniform, Segment, Sgd, TableConfig, VariableConfig, Zeros

__all__ = [
    "Adagrad",
    "Cluster",
    "ClusterStatus",
    "Controller",
    "Member",
    "Pulled",
    "RandomUniform",
    "SavedCheckpoint",
    "Segment",
    "Sgd",
    "TableConfig",
    "VariableConfig",
    "Zeros",
    "connect",
    "errors",
]
