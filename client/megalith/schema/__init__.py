"""What tables and variables look like.

They are plain values: the SDK builds them, the wire carries them and a ps obeys them.

These are the public names; "X as X" says so to type checkers. The optimizers come as a whole, so
that a new one is written down in its own module only.
"""

from megalith.schema.admission import AdmissionConfig as AdmissionConfig
from megalith.schema.admission import FilterKind as FilterKind
from megalith.schema.compressors import Compressor as Compressor
from megalith.schema.compressors import FixedR8 as FixedR8
from megalith.schema.compressors import Fp16 as Fp16
from megalith.schema.compressors import Fp32 as Fp32
from megalith.schema.compressors import OneBit as OneBit
from megalith.schema.dense_optimizers import Adamom as Adamom
from megalith.schema.dense_optimizers import DenseOptimizer as DenseOptimizer
from megalith.schema.dense_optimizers import DenseRmsprop as DenseRmsprop
from megalith.schema.dense_optimizers import DenseRmspropV2 as DenseRmspropV2
from megalith.schema.dense_optimizers import Shampoo as Shampoo
from megalith.schema.initializers import Constants as Constants
from megalith.schema.initializers import Initializer as Initializer
from megalith.schema.initializers import Ones as Ones
from megalith.schema.initializers import RandomUniform as RandomUniform
from megalith.schema.initializers import Zeros as Zeros
from megalith.schema.optimizers import *  # noqa: F403 (its `__all__` is the list)
from megalith.schema.optimizers import Optimizer as Optimizer
from megalith.schema.schedules import Constant as Constant
from megalith.schema.schedules import LinearWarmup as LinearWarmup
from megalith.schema.schedules import PolynomialDecay as PolynomialDecay
from megalith.schema.schedules import Schedule as Schedule
from megalith.schema.tables import Segment as Segment
from megalith.schema.tables import TableConfig as TableConfig
from megalith.schema.variable_parts import Part as Part
from megalith.schema.variables import VariableConfig as VariableConfig
