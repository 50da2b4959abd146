"""Code that runs beside the steps of a worker.

from megalith.worker.hooks import Hook

class EarlyEnd(Hook):
    def after_step(self, worker, done):
        if done.loss is not None and done.loss < 0.1:
            worker.request_stop("the loss is low enough")

A task that has `hooks = (EarlyEnd(),)` brings it along; --hooks my_hooks.py:EarlyEnd adds it to any
task.
"""

from megalith.worker.hooks.hook import Hook, RunningWorker, StepDone, current_worker

__all__ = ["Hook", "RunningWorker", "StepDone", "current_worker"]
