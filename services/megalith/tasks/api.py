"""What a task of your own is made of.

from megalith.tasks.api import FeatureBatch, FeatureTask, StepOutput
"""

from megalith.tasks.auc import auc as auc
from megalith.tasks.evaluation import Evaluation as Evaluation
from megalith.tasks.feature_task import FeatureBatch as FeatureBatch
from megalith.tasks.feature_task import FeatureTask as FeatureTask
from megalith.tasks.feature_task import StepOutput as StepOutput
from megalith.tasks.held_out import ListedInput as ListedInput
from megalith.tasks.input.generated import GeneratedInput as GeneratedInput
from megalith.worker.input import Input as Input
from megalith.worker.input import InputBatch as InputBatch
from megalith.worker.input import Mode as Mode
from megalith.worker.task import Gradients as Gradients
