"""The Megalith SDK: train against a running cluster from NumPy. `megalith.control` controls it.

import megalith.client as mg

with mg.connect(model_dir="model") as cluster:
    cluster.create_tables(mg.TableConfig("user", (mg.Segment(8, optimizer=mg.Adagrad(0.05)),)))
    rows = cluster.pull({"user": ids}).rows["user"]
    cluster.push({"user": (ids, gradients)})

These are the public names; "X as X" says so to type checkers.
"""

from megalith import errors as errors
from megalith.client._background_calls import BackgroundCalls as BackgroundCalls
from megalith.client._clipping import Clip as Clip
from megalith.client._clipping import GradientRecipe as GradientRecipe
from megalith.client._clipping import clip_by_global_norm as clip_by_global_norm
from megalith.client._cluster import Cluster as Cluster
from megalith.client._cluster import Pulled as Pulled
from megalith.client._connect import connect as connect
from megalith.client._features.combiners import FirstN as FirstN
from megalith.client._features.combiners import Mean as Mean
from megalith.client._features.combiners import Sqrtn as Sqrtn
from megalith.client._features.combiners import Sum as Sum
from megalith.client._features.feature import Feature as Feature
from megalith.client._features.feature import Slice as Slice
from megalith.client._features.feature_configs import (
    feature_configs_from_text as feature_configs_from_text,
)
from megalith.client._features.feature_configs import (
    feature_configs_to_text as feature_configs_to_text,
)
from megalith.client._features.feature_layouts import Batch as Batch
from megalith.client._features.feature_layouts import FeatureLayouts as FeatureLayouts
from megalith.client._features.feature_layouts import Located as Located
from megalith.client._features.feature_set import FeatureSet as FeatureSet
from megalith.client._features.hashing import hash_ids as hash_ids
from megalith.client._features.layout import Columns as Columns
from megalith.client._features.layout import Layout as Layout
from megalith.client._features.layout import OutType as OutType
from megalith.client._features.ragged import Ragged as Ragged
from megalith.client._ids import Ids as Ids
from megalith.client._plans import PushOptions as PushOptions
from megalith.client._read_ahead import read_ahead as read_ahead
from megalith.client._stack_dump import write_stacks_on_sigusr1 as write_stacks_on_sigusr1
from megalith.client._summaries.event_file import EventFile as EventFile
from megalith.client._summaries.summary import Summary as Summary
from megalith.client._summaries.summary import SummaryKind as SummaryKind
from megalith.client._summaries.summary import feature_insight_summary as feature_insight_summary
from megalith.client._summaries.summary import nas_summary as nas_summary
from megalith.client._table_stats import TableStats as TableStats
from megalith.client._table_stats import VariableStats as VariableStats
from megalith.client._transport.pending_call import PendingCall as PendingCall
from megalith.client._variable_cache import VariableCache as VariableCache
from megalith.schema import Adamom as Adamom
from megalith.schema import AdmissionConfig as AdmissionConfig
from megalith.schema import Constant as Constant
from megalith.schema import Constants as Constants
from megalith.schema import DenseRmsprop as DenseRmsprop
from megalith.schema import DenseRmspropV2 as DenseRmspropV2
from megalith.schema import FilterKind as FilterKind
from megalith.schema import FixedR8 as FixedR8
from megalith.schema import Fp16 as Fp16
from megalith.schema import Fp32 as Fp32
from megalith.schema import LinearWarmup as LinearWarmup
from megalith.schema import OneBit as OneBit
from megalith.schema import Ones as Ones
from megalith.schema import PolynomialDecay as PolynomialDecay
from megalith.schema import RandomUniform as RandomUniform
from megalith.schema import Segment as Segment
from megalith.schema import Shampoo as Shampoo
from megalith.schema import TableConfig as TableConfig
from megalith.schema import VariableConfig as VariableConfig
from megalith.schema import Zeros as Zeros
from megalith.schema.fids import V1 as V1
from megalith.schema.fids import V2 as V2
from megalith.schema.fids import FidLayout as FidLayout
from megalith.schema.optimizers import *  # noqa: F403 (its `__all__` is the list)
