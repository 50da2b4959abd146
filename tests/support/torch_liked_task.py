"""The task of `liked_task` with a torch module as its model."""

from typing import ClassVar

import torch
from torch import nn

import megalith.client as mg
from megalith.torch import TorchTask
from support.liked_task import LikedTask, drawn

RATE = mg.Adagrad(0.05)
VECTORS = (mg.Slice("vec", 8, mg.RandomUniform(-0.1, 0.1), RATE),)


class Head(nn.Module):
    """A product of both vectors, and a layer that sees both."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(16, 16)
        self.out = nn.Linear(17, 1)

    def forward(self, layouts):
        both = layouts["both"]
        product = both.prod(1).sum(1, keepdim=True)
        hidden = torch.relu(self.hidden(both.flatten(1)))
        return self.out(torch.cat([hidden, product], 1))[:, 0]


class TorchLikedTask(TorchTask):
    features = (mg.Feature("user", VECTORS), mg.Feature("film", VECTORS))
    layouts: ClassVar = {"both": mg.Layout.stack("user", "film")}
    optimizer = mg.Adam(0.003, beta2=0.999, epsilon=1e-8)
    num_batches = LikedTask.num_batches
    batch = LikedTask.batch

    def __init__(self, *, batch_size=64, num_examples=6400, seed=1):
        self._batch_size = batch_size
        self._num_examples = num_examples
        self._seed = seed
        torch.manual_seed(seed)
        self.module = Head()

    def held_out(self):
        return [drawn(self._seed, 10_000_000 + number, 5000) for number in range(10)]
