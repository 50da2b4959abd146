"""Features of a served model as a torch module: lookups at replicas, and no gradients."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from megalith.client import FeatureLayouts
from megalith.errors import ShapeMismatch
from megalith.serving import Freshness, LookupResult, ServingClient
from megalith.torch._embedding import IdsByFeature, as_arrays


class ServedEmbedding(nn.Module):
    """The layouts of features as tensors, from the rows of replicas. Read only.

    It takes the place of `ClusterEmbedding` where a trained model answers requests. It has no
    parameters, nothing flows back through its outputs, and `freshness` says how fresh the rows of
    the last forward are. Tensors are on the device that the module was moved to.

    Parameters
    ----------
    client
        What `megalith.serving.connect` returned.
    features
        The features and layouts with which the model was trained.
    max_staleness_s
        Rows that are staler are refused with TooStale; None takes that of `connect`.
    """

    def __init__(
        self,
        client: ServingClient,
        features: FeatureLayouts,
        *,
        max_staleness_s: float | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.freshness: Freshness | None = None  # of the last forward

        self._client = client
        self._max_staleness_s = max_staleness_s

        self._width_by_table = {}
        for table in features.tables:
            self._width_by_table[table.name] = sum(segment.dim for segment in table.segments)

        self.register_buffer("_device", torch.empty(0), persistent=False)

    def forward(self, ids: IdsByFeature) -> dict[str, Tensor | tuple[Tensor, ...]]:
        """Tensors by layout; a layout of type none with several parts has a tuple.

        Ids are as in `ClusterEmbedding`. One without a row has zeros.
        """
        located = self.features.locate(as_arrays(ids))
        wanted = {table: distinct.values for table, distinct in located.ids.items()}

        found = self._client.lookup(wanted, max_staleness_s=self._max_staleness_s)
        self._check_fits(found)
        self.freshness = found.freshness

        batch = self.features.assemble(located, found.rows, {})
        outputs: dict[str, Tensor | tuple[Tensor, ...]] = {}
        for name in batch.outputs:
            tensors = tuple(self._tensor(array) for array in batch.parts(name))
            outputs[name] = tensors[0] if len(tensors) == 1 else tensors

        return outputs

    def _check_fits(self, found: LookupResult) -> None:
        for table, rows in found.rows.items():
            wanted = self._width_by_table[table]
            if rows.shape[1] != wanted:
                raise ShapeMismatch(
                    f"rows of table {table} have {rows.shape[1]} numbers at the replicas, the "
                    f"features take {wanted}: the model was trained with others"
                )

    def _tensor(self, array: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self._device.device)


def load_served(module: nn.Module, client: ServingClient) -> None:
    """Copy the variables of a served model into the parameters of the same names.

    For a module that a `TorchTask` trained: its parameters are variables of the model. All of them
    are copied, or none: UnknownVariable and ShapeMismatch name what does not fit.
    """
    parameters = dict(module.named_parameters())
    values = client.variables(list(parameters))
    for name, parameter in parameters.items():
        if values[name].shape != tuple(parameter.shape):
            raise ShapeMismatch(
                f"variable {name} is {list(values[name].shape)} at the replicas, the module has "
                f"{list(parameter.shape)}"
            )

    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(values[name].copy()))
