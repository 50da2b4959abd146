"""Features of a cluster as a torch module: a lookup in forward, a push in backward."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from megalith.client import Batch, FeatureSet, PendingCall, PushOptions, Ragged
from megalith.errors import InvalidRequest
from megalith.wire import forking

T = TypeVar("T")
IdsByFeature = Mapping[str, Ragged | ArrayLike | Tensor]


class ClusterEmbedding(nn.Module):
    """The layouts of a feature set as tensors.

    It has no parameters of its own: its rows live on the cluster. `forward` is one pull. `backward`
    through its outputs is one push, checked whole before it is sent: the servers apply the
    optimizers of the slices, so `optimizer.step()` and `zero_grad()` concern the dense part only,
    and clipping or scaling of gradients reaches the rows only if it happens in the graph. Outside
    of training mode, and under `torch.no_grad()`, nothing is pushed. A backward that is repeated
    (`retain_graph`) pushes again.

    Tensors are on the device that the module was moved to.

    Parameters
    ----------
    features
        What is looked up and trained.
    pushes_behind
        0: `backward` ends when its push was applied, and raises what went wrong. 1: the push goes
        on beside what comes next, and the next `backward` first waits for it. More than 1: an error
        of a push may be raised so many pushes later. A forward that looks ids up waits for all
        pushes, so its rows have seen every one; a forward of a prefetched batch waits for none. An
        error of a push is raised by a later forward or backward, or by `flush`, which belongs
        behind the last backward. A backward that raises it pushes nothing of its own.
    """

    def __init__(self, features: FeatureSet, *, pushes_behind: int = 0) -> None:
        super().__init__()
        if pushes_behind < 0:
            raise InvalidRequest(f"pushes_behind {pushes_behind} is negative")

        self.features = features
        self._pushes_behind = pushes_behind
        self._pushes: deque[PendingCall[Any]] = deque()
        self.register_buffer("_device", torch.empty(0), persistent=False)
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """Pushes under way are the parent's."""
        self._pushes = deque()

    def forward(
        self, batch: IdsByFeature | Batch, *, req_time_s: int = 0, step: int = 0
    ) -> dict[str, Tensor | tuple[Tensor, ...]]:
        """Tensors by layout; a layout of type none with several parts has a tuple.

        Parameters
        ----------
        batch
            Ids by feature, as `FeatureSet.lookup` takes them or as integer tensors (vector, matrix,
            or jagged), or a batch that was looked up already, such as one of `prefetch`.
        req_time_s, step
            Of the push in backward: the data's Unix time, and the global step for learning-rate
            schedules.
        """
        if isinstance(batch, Batch):
            self._wait_for_pushes(self._pushes_behind)
            looked = batch
        else:
            self._wait_for_pushes(0)
            looked = self.features.lookup(as_arrays(batch))

        arrays: list[NDArray[np.float32]] = []
        for name in looked.outputs:
            arrays.extend(looked.parts(name))

        def push(gradients: list[NDArray[np.float32] | None]) -> None:
            self._push(looked, _by_layout(looked, gradients), req_time_s, step)

        device = self._device.device

        if self.training and torch.is_grad_enabled():
            anchor = torch.empty(0, requires_grad=True)
            tensors = list(_PushInBackward.apply(anchor, push, arrays, device))
        else:
            tensors = [torch.from_numpy(array).to(device) for array in arrays]

        outputs: dict[str, Tensor | tuple[Tensor, ...]] = {}
        for name, values in _grouped(looked, tensors).items():
            outputs[name] = values[0] if len(values) == 1 else values

        return outputs

    def prefetch(
        self, batches: Iterable[T], ids: Callable[[T], IdsByFeature], *, depth: int = 1
    ) -> Iterator[tuple[T, Batch]]:
        """Look up the next `depth` batches while the model works on one.

        Yields (batch, what `forward` takes). Rows are stale by at most `depth` + `pushes_behind`
        pushes of this process: with 1 and 0, the rows of a batch may not have seen the backward of
        the one before it. A depth of 0 looks up when asked.
        """
        if not callable(ids):
            raise InvalidRequest(f"prefetch: ids={ids!r:.60} is not a function of a batch")

        return self.features.prefetch(batches, lambda batch: as_arrays(ids(batch)), depth=depth)

    def flush(self) -> None:
        """Wait until every push was applied; raises the error of one that was not."""
        self._wait_for_pushes(0)

    def _push(self, batch: Batch, gradients: dict[str, Any], req_time_s: int, step: int) -> None:
        options: PushOptions = {"req_time_s": req_time_s, "step": step}
        if not self._pushes_behind:
            self.features.apply(batch, gradients, **options)
            return

        self._wait_for_pushes(self._pushes_behind - 1)
        push = self.features.begin_apply(batch, gradients, **options)
        self._pushes.append(push)

    def _wait_for_pushes(self, most: int) -> None:
        """Wait until at most `most` pushes are under way.

        Those that are answered are looked at too, for their errors.
        """
        while self._pushes:
            oldest = self._pushes[0]
            if len(self._pushes) <= most and not oldest.is_answered:
                return

            self._pushes.popleft()
            oldest.result()


class _PushInBackward(torch.autograd.Function):
    """Arrays become tensors of the graph; their gradients, all at once, go to `push`.

    `anchor` is there to require a gradient: no other input does, and a function of none is not
    recorded.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        push: Callable[[list[NDArray[np.float32] | None]], None],
        arrays: list[NDArray[np.float32]],
        device: torch.device,
    ) -> tuple[Tensor, ...]:
        ctx.push = push
        ctx.set_materialize_grads(False)
        return tuple(torch.from_numpy(array).to(device) for array in arrays)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None, None]:
        arrays: list[NDArray[np.float32] | None] = []
        for gradient in gradients:
            if gradient is None:
                arrays.append(None)
            else:
                arrays.append(gradient.float().cpu().numpy())

        ctx.push(arrays)
        return None, None, None, None


def _grouped(batch: Batch, items: list[T]) -> dict[str, tuple[T, ...]]:
    """One item per array of a batch, by layout."""
    grouped: dict[str, tuple[T, ...]] = {}
    start = 0

    for name, arrays in batch.outputs.items():
        end = start + len(arrays)
        grouped[name] = tuple(items[start:end])
        start = end

    return grouped


def _by_layout(
    batch: Batch, gradients: list[NDArray[np.float32] | None]
) -> dict[str, tuple[NDArray[np.float32] | None, ...]]:
    """Layouts that have a gradient; a part without one in such a layout has None."""
    by_layout = {}
    for name, parts in _grouped(batch, gradients).items():
        if any(part is not None for part in parts):
            by_layout[name] = parts

    return by_layout


def as_arrays(ids: IdsByFeature) -> dict[str, Ragged | ArrayLike]:
    """Tensors among the ids as arrays."""
    return {
        name: _as_array(value) if isinstance(value, Tensor) else value
        for name, value in ids.items()
    }


def _as_array(value: Tensor) -> Ragged | NDArray[Any]:
    if value.is_nested:
        if value.layout is not torch.jagged:
            raise InvalidRequest(
                "ids are a nested tensor with a strided layout: make it with layout=torch.jagged"
            )

        jagged = value.contiguous()  # one that was narrowed has values between its lists
        return Ragged(jagged.values().cpu().numpy(), jagged.offsets().cpu().numpy())

    array: NDArray[Any] = value.detach().cpu().numpy()
    return array
