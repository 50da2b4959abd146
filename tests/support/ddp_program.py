"""A rank whose dense part is a torch module, with and without DistributedDataParallel."""

import json
import sys

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from megalith.sync import sync_train
from support.torch_liked_task import TorchLikedTask

dist.init_process_group("gloo")
task = TorchLikedTask(batch_size=32, num_examples=640)
if sys.argv[1] == "ddp":
    task.module = DistributedDataParallel(task.module)

run = sync_train(task, collective="gloo", evaluates=False)
print("\nresult " + json.dumps({"losses": run.losses}), flush=True)
dist.destroy_process_group()
