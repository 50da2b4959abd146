"""The Megalith SDK: train against a running cluster from NumPy, and control it.

import megalith.client as mg

with mg.connect(model_dir="model") as cluster:
    cluster.create_tables(mg.TableConfig("user", (mg.Segment(8, optimizer=mg.Adagrad(0.05)),)))
    rows = cluster.pull({"user": ids}).rows["user"]
    cluster.push({"user": (ids, gradients)})
"""

from megalith.client._appmaster import Application, AppMaster, Savepoint, SupervisedProcess, Verdict
from megalith.client._begun import Begun
from megalith.client._clipping import Clip, GradientRecipe, clip_by_global_norm
from megalith.client._cluster import Cluster, Pulled, connect
from megalith.client._combiners import FirstN, Mean, Sqrtn, Sum
from megalith.client._controller import (
    Barrier,
    ClusterStatus,
    Controller,
    Holder,
    LastSave,
    Loss,
    Member,
    PsCandidate,
    Restored,
    SavedCheckpoint,
)
from megalith.client._feature import Feature, Slice
from megalith.client._feature_set import Batch, FeatureSet
from megalith.client._hashing import hash_ids
from megalith.client._ids import Ids
from megalith.client._layout import Columns, Layout, OutType
from megalith.client._ragged import Ragged
from megalith.client._table_stats import TableStats, VariableStats
from megalith.client._variable_cache import VariableCache
from megalith.wire import errors
from megalith.wire.fids import V1, V2, FidLayout
from megalith.wire.schema import (
    Adadelta,
    Adagrad,
    Adam,
    Adamom,
    AdmissionConfig,
    Amsgrad,
    BatchSoftmax,
    Constant,
    Constants,
    Dc,
    DenseRmsprop,
    DenseRmspropV2,
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
    Shampoo,
    StochasticRoundingFloat16,
    TableConfig,
    VariableConfig,
    Zeros,
)

__all__ = [
    "V1",
    "V2",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamom",
    "AdmissionConfig",
    "Amsgrad",
    "AppMaster",
    "Application",
    "Barrier",
    "Batch",
    "BatchSoftmax",
    "Begun",
    "Clip",
    "Cluster",
    "ClusterStatus",
    "Columns",
    "Constant",
    "Constants",
    "Controller",
    "Dc",
    "DenseRmsprop",
    "DenseRmspropV2",
    "DynamicWdAdagrad",
    "Feature",
    "FeatureSet",
    "FidLayout",
    "FilterKind",
    "FirstN",
    "FixedR8",
    "Fp16",
    "Fp32",
    "Ftrl",
    "GradientRecipe",
    "GroupAdagrad",
    "GroupFtrl",
    "Holder",
    "Ids",
    "LastSave",
    "Layout",
    "LinearWarmup",
    "Loss",
    "Mean",
    "Member",
    "Momentum",
    "MovingAverage",
    "OneBit",
    "Ones",
    "OutType",
    "PolynomialDecay",
    "PsCandidate",
    "Pulled",
    "Ragged",
    "RandomUniform",
    "Restored",
    "Rmsprop",
    "RmspropV2",
    "SavedCheckpoint",
    "Savepoint",
    "Segment",
    "Sgd",
    "Shampoo",
    "Slice",
    "Sqrtn",
    "StochasticRoundingFloat16",
    "Sum",
    "SupervisedProcess",
    "TableConfig",
    "TableStats",
    "VariableCache",
    "VariableConfig",
    "VariableStats",
    "Verdict",
    "Zeros",
    "clip_by_global_norm",
    "connect",
    "errors",
    "hash_ids",
]
