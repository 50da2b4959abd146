"""Where lists begin and end that lie one behind the other."""

import numpy as np
from numpy.typing import NDArray


def splits_of(lengths: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """List i is at [splits[i], splits[i + 1]) of the values; there is one split more than lists."""
    splits = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits
