"""The task of `liked_task` with some batches that cannot be trained."""

import math
import sys

import megalith.client as mg
from megalith.tasks.api import FeatureBatch, StepOutput
from support.liked_task import LikedTask


class SpoiledTask(LikedTask):
    """`spoiled` says how those of `numbers` are bad: nan, label, splits, read, raise or exit."""

    def batch(self, number):
        batch = super().batch(number)
        is_bad = number in self.options["numbers"]
        labels = batch.labels.copy()
        if is_bad and self.options["spoiled"] == "label":
            labels[0] = 3.0
        if is_bad and self.options["spoiled"] == "read":
            raise RuntimeError("no file today")

        ids = batch.ids
        if is_bad and self.options["spoiled"] == "splits":
            user = mg.Ragged.of(ids["user"])
            user.row_splits[3] = 1  # it was right when it was made
            ids = ids | {"user": user}
        return FeatureBatch(ids, labels, fields={"is_bad": is_bad})

    def step(self, batch, layouts, variables):
        learned = super().step(batch, layouts, variables)
        if not batch.fields["is_bad"]:
            return learned
        if self.options["spoiled"] == "raise":
            raise RuntimeError("no film today")
        if self.options["spoiled"] == "exit":
            sys.exit("no more films")
        return StepOutput(math.nan, learned.layouts, learned.variables)
