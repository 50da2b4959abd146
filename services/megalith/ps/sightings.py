"""The question that every admission filter answers, checked: filter kernels take any array at its word."""

import numpy as np

from megalith.ps.kernels.dtypes import I64
from megalith.wire.errors import InvalidRequest, MalformedArray, ShapeMismatch


def check_sightings(keys: I64, counts: I64) -> None:
    """Raise unless `keys` are ids and `counts` how often each was seen, once or more."""
    for name, array in (("ids", keys), ("counts", counts)):
        if array.dtype != np.int64 or array.ndim != 1 or not array.flags.c_contiguous:
            raise MalformedArray(
                f"admission: {name} are {array.dtype} of shape {array.shape}, not a packed int64 vector"
            )
    if keys.shape != counts.shape:
        raise ShapeMismatch(f"admission: {keys.size} ids with {counts.size} counts")
    if counts.size and counts.min() < 1:
        raise InvalidRequest(
            f"admission: count {counts.min()}; an id that is asked about was seen once or more"
        )
