"""What a model sees of its features: the arrays of each layout, by its name."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from megalith.errors import InvalidRequest, UnknownLayout

F32 = NDArray[np.float32]


def array_of(outputs: Mapping[str, tuple[F32, ...]], layout: str) -> F32:
    """The array of a layout; InvalidRequest for one of several parts."""
    arrays = parts_of(outputs, layout)
    if len(arrays) > 1:
        raise InvalidRequest(f"layout {layout} has {len(arrays)} arrays: take parts({layout!r})")

    return arrays[0]


def parts_of(outputs: Mapping[str, tuple[F32, ...]], layout: str) -> tuple[F32, ...]:
    """The arrays of a layout: one, or for type none one per part."""
    if layout not in outputs:
        raise UnknownLayout(f"no layout {layout!r}; there are {sorted(outputs)}")

    return outputs[layout]
