"""Checks of the question that every admission filter answers.

The kernels of filters take any array at its word.
"""

import numpy as np

from megalith.errors import InvalidRequest, MalformedArray, ShapeMismatch
from megalith.kernels.dtypes import I64


def check_sightings(ids: I64, counts: I64) -> None:
    """Raise unless `ids` is a vector of ids, and `counts` how often each was seen."""
    for name, array in (("ids", ids), ("counts", counts)):
        is_vector = array.ndim == 1 and array.flags.c_contiguous
        if array.dtype != np.int64 or not is_vector:
            raise MalformedArray(
                f"admission: {name} are {array.dtype} of shape {array.shape}, "
                "not a packed int64 vector"
            )

    if ids.shape != counts.shape:
        raise ShapeMismatch(f"admission: {ids.size} ids with {counts.size} counts")

    if counts.size and counts.min() < 1:
        raise InvalidRequest(
            f"admission: count {counts.min()}; an id that is asked about was seen once or more"
        )
