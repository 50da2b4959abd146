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
from megalith.wire.schema import (
    Adadelta,
    Adagrad,
    Adam,
    AdmissionConfig,
    Amsgrad,
    BatchSoftmax,
    Constant,
    Constants,
    Dc,
    DynamicWdAdagrad,
    FilterKind,
    FixedR8,
    Fp16,
    Fp32,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    LinearWarmup,
    Momentum,
    MovingAverage,
    OneBit,
    Ones,
    PolynomialDecay,
    RandomUniform,
    Rmsprop,
    RmspropV2,
    Segment,
    Sgd,
    StochasticRoundingFloat16,
    TableConfig,
    VariableConfig,
    Zeros,
)

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdmissionConfig",
    "Amsgrad",
    "BatchSoftmax",
    "Cluster",
    "ClusterStatus",
    "Constant",
    "Constants",
    "Controller",
    "Dc",
    "DynamicWdAdagrad",
    "FilterKind",
    "FixedR8",
    "Fp16",
    "Fp32",
    "Ftrl",
    "GroupAdagrad",
    "GroupFtrl",
    "LinearWarmup",
    "Member",
    "Momentum",
    "MovingAverage",
    "OneBit",
    "Ones",
    "PolynomialDecay",
    "Pulled",
    "RandomUniform",
    "Rmsprop",
    "RmspropV2",
    "SavedCheckpoint",
    "Segment",
    "Sgd",
    "StochasticRoundingFloat16",
    "TableConfig",
    "VariableConfig",
    "Zeros",
    "connect",
    "errors",
]
