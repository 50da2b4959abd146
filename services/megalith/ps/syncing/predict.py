"""A push as the Predict call of a TensorFlow Serving."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.protos import tensorflow_serving_pb2 as pb
from megalith.ps.syncing.request import SyncRequest

_INT64 = np.dtype("<i8")
_FLOAT32 = np.dtype("<f4")


def predict_request(request: SyncRequest) -> pb.PredictRequest:
    """The inputs that Monolith's serving models assign to their tables."""
    if request.multi_table:
        signature = f"{request.multi_table}/raw_assign"
        inputs = _multi_table_inputs(request)
    else:
        signature = request.signature
        inputs = _single_table_inputs(request)

    spec = pb.ModelSpec(name=request.model_name, signature_name=signature)
    return pb.PredictRequest(model_spec=spec, inputs=inputs)


def _single_table_inputs(request: SyncRequest) -> dict[str, pb.TensorProto]:
    inputs = {}
    for delta in request.deltas:
        inputs[f"{delta.table}_id"] = _int64(delta.ids)
        inputs[f"{delta.table}_value"] = _float32(delta.values)

    return inputs


def _multi_table_inputs(request: SyncRequest) -> dict[str, pb.TensorProto]:
    """Ids and floats of all tables one after the other; `id_split` is where each table begins."""
    sizes = [delta.ids.size for delta in request.deltas]
    ids = [delta.ids for delta in request.deltas]
    values = [delta.values.ravel() for delta in request.deltas]
    return {
        "id": _int64(np.concatenate(ids)),
        "id_split": _int64(np.cumsum([0, *sizes])),
        "flat_value": _float32(np.concatenate(values)),
    }


def _int64(array: NDArray[Any]) -> pb.TensorProto:
    return _tensor(array.astype(_INT64), pb.DT_INT64)


def _float32(array: NDArray[Any]) -> pb.TensorProto:
    return _tensor(array.astype(_FLOAT32), pb.DT_FLOAT)


def _tensor(array: NDArray[Any], dtype: pb.DataType.ValueType) -> pb.TensorProto:
    dims = [pb.TensorShapeProto.Dim(size=size) for size in array.shape]
    return pb.TensorProto(
        dtype=dtype,
        tensor_shape=pb.TensorShapeProto(dim=dims),
        tensor_content=array.tobytes(),
    )
