"""A task whose model is a torch module: its parameters are variables that all workers share."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from megalith.client import Adam, VariableConfig
from megalith.errors import InvalidRequest
from megalith.schema import DenseOptimizer
from megalith.tasks.feature_task import F32, ArrayByLayout, FeatureBatch, FeatureTask, StepOutput

Variables = Mapping[str, NDArray[Any]]
TensorParts = dict[str, tuple[Tensor, ...]]  # by layout


class TorchTask(FeatureTask):
    """The base of a task of your own with a model in PyTorch.

    Set `features` and `module` in `__init__`, and perhaps `layouts`. The rest is as in FeatureTask,
    without `step` and `predict`. `module` is called with the tensors of the layouts by name and,
    if batches have dense columns, with their tensor; it returns one logit for each example. A
    layout of type none with several parts is a tuple of tensors. Override `forward` or `loss` for
    anything else.

    The parameters of the module are variables of the model, each by its name: a worker reads them
    with its rows, and pushes their gradients, which `optimizer` applies. So all workers train one
    model, and a checkpoint has the parameters and what their optimizer knows. Frozen parameters are
    variables too, which nothing changes. All of them are float32, in the memory of the CPU.

    Buffers stay with the module of one worker, so they are constants. BatchNorm, whose statistics
    change, is refused, and so is a step that changes any other buffer.
    """

    module: nn.Module
    # Of the parameters. The epsilon is that of torch, larger ones would slow dense layers down.
    optimizer: DenseOptimizer = Adam(0.001, beta2=0.999, epsilon=1e-8)

    def forward(self, batch: FeatureBatch, layouts: Mapping[str, Any]) -> Tensor:
        """One logit for each example."""
        if batch.dense is None:
            logits: Tensor = self.module(layouts)
        else:
            dense = np.ascontiguousarray(batch.dense, np.float32)
            logits = self.module(layouts, torch.from_numpy(dense))

        return logits

    def loss(self, logits: Tensor, batch: FeatureBatch) -> Tensor:
        """The mean loss of a batch; as it stands that is the log-loss."""
        array = np.ascontiguousarray(batch.labels, np.float32)
        labels = torch.from_numpy(array)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)

    # Of FeatureTask it is an attribute; here it follows from the module.
    @cached_property
    def variables(self) -> tuple[VariableConfig, ...]:  # type: ignore[override]
        self._check_module()
        self._check_parameters()
        configs = []
        for name, parameter in self._parameters.items():
            initial = parameter.detach().numpy().copy()
            if parameter.requires_grad:
                configs.append(VariableConfig(name, initial, self.optimizer))
            else:
                configs.append(VariableConfig(name, initial))

        return tuple(configs)

    def step(self, batch: FeatureBatch, layouts: ArrayByLayout, variables: Variables) -> StepOutput:
        """Gradients of the summed loss for rows, of the mean loss for parameters."""
        self._take(variables)
        buffers = self._buffer_versions()
        self.module.train()
        self.module.zero_grad()

        parts = _parts(layouts)
        for tensors in parts.values():
            for tensor in tensors:
                tensor.requires_grad_()

        output = self.forward(batch, _by_layout(parts))
        logits = self._checked(output, batch)
        loss = self.loss(logits, batch)
        if loss.dim():
            raise InvalidRequest(f"loss() returned {list(loss.shape)}, expected one number")

        loss.backward()
        self._check_buffers(buffers)
        # A row is used by few examples of a batch: its step must not shrink with the size.
        row_gradients = _row_gradients(parts, np.float32(len(batch)))

        gradients = {}
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.numpy().copy()

        return StepOutput(loss.item(), row_gradients, gradients)

    def predict(self, batch: FeatureBatch, layouts: ArrayByLayout, variables: Variables) -> F32:
        """One logit for each example, by the parameters of the model."""
        self._take(variables)
        with self._by_itself(), torch.no_grad():
            self.module.eval()
            parts = _parts(layouts)
            output = self.forward(batch, _by_layout(parts))
            checked = self._checked(output, batch)

        logits: F32 = checked.numpy()
        return logits

    @cached_property
    def _parameters(self) -> dict[str, nn.Parameter]:
        """By the names that they have without DistributedDataParallel, so that others know them."""
        return dict(_unwrapped(self.module).named_parameters())

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Inside, the module is that of this process: no other one may be predicting."""
        whole = self.module
        self.module = _unwrapped(whole)
        try:
            yield
        finally:
            self.module = whole

    def _take(self, variables: Variables) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(_tensor(variables[name]))

    def _checked(self, logits: Tensor, batch: FeatureBatch) -> Tensor:
        if logits.shape == (len(batch), 1):
            return logits[:, 0]
        if logits.shape != (len(batch),):
            raise InvalidRequest(
                f"the module returned {list(logits.shape)}, expected one logit for each of "
                f"{len(batch)} examples"
            )

        return logits

    def _check_module(self) -> None:
        if not isinstance(getattr(self, "module", None), nn.Module):
            raise InvalidRequest(f"{type(self).__name__} has no module: set self.module")

        for name, part in self.module.named_modules():
            if isinstance(part, _NormBase) and part.track_running_stats:
                kind = type(part).__name__
                raise InvalidRequest(
                    f"{type(self).__name__}: {name} is of {kind}, whose statistics would be "
                    "different on each worker; use LayerNorm, or track_running_stats=False"
                )

    def _check_parameters(self) -> None:
        for name, parameter in self._parameters.items():
            if is_lazy(parameter):
                raise InvalidRequest(
                    f"{type(self).__name__}: the shape of the parameter {name} is not known before "
                    "the first batch; use the module that is not lazy, and give it the shape"
                )
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise InvalidRequest(
                    f"{type(self).__name__}: the parameter {name} is {parameter.dtype} on "
                    f"{parameter.device}, expected torch.float32 on cpu: module.float().cpu()"
                )

    def _buffer_versions(self) -> dict[str, tuple[int, int]]:
        """By name: which tensor a buffer is, and how often it was written to."""
        return {name: (id(each), each._version) for name, each in self.module.named_buffers()}

    def _check_buffers(self, before: dict[str, tuple[int, int]]) -> None:
        for name, version in self._buffer_versions().items():
            if version != before.get(name):
                raise InvalidRequest(
                    f"{type(self).__name__}: a step has changed the buffer {name}, which would be "
                    "different on each worker and is in no checkpoint; make it a parameter"
                )


def _unwrapped(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


def _parts(layouts: Mapping[str, Any]) -> TensorParts:
    parts = {}
    for name, given in layouts.items():
        arrays = given if isinstance(given, tuple) else (given,)
        parts[name] = tuple(_tensor(array) for array in arrays)

    return parts


def _by_layout(parts: TensorParts) -> dict[str, Any]:
    """As a module takes them: a tensor, or the tuple of several."""
    by_layout: dict[str, Any] = {}
    for name, each in parts.items():
        by_layout[name] = each if len(each) > 1 else each[0]

    return by_layout


def _row_gradients(parts: TensorParts, scale: np.float32) -> dict[str, tuple[F32 | None, ...]]:
    """Of the layouts that have a gradient; a part without one in such a layout has None."""
    gradients = {}
    for name, tensors in parts.items():
        if all(tensor.grad is None for tensor in tensors):
            continue

        found: list[F32 | None] = []
        for tensor in tensors:
            gradient = None if tensor.grad is None else tensor.grad.numpy() * scale
            found.append(gradient)

        gradients[name] = tuple(found)

    return gradients


def _tensor(array: NDArray[Any]) -> Tensor:
    if not array.flags.writeable:
        array = array.copy()  # torch warns of arrays that it must not write to

    return torch.from_numpy(array)
