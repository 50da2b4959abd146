"""Training in one process, without servers: for notebooks, tests and small jobs.

from megalith.local import local_train

result = local_train(MyTask(...), model_dir="model")
print(result.figures)
"""

from megalith.local.model import LocalModel as LocalModel
from megalith.local.run import LocalRun as LocalRun
from megalith.local.training import local_train as local_train
