"""A table of many rows whose every value and accumulator is known, however its ids lie."""

import numpy as np

from megalith.client import Adagrad, Segment, TableConfig, Zeros

DIM, RATE, ACCUMULATOR = 2, np.float32(0.5), np.float32(0.25)
TABLE = TableConfig("known", (Segment(DIM, Zeros(), Adagrad(0.5, initial_accumulator_value=0.25)),))
ORDERS = ("random", "sorted", "clustered", "adversarial")
_AT_ONCE = 100_000
_MULTIPLIERS = (0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35)  # of the index hash before it had a secret


def ids_in(order, count):
    """`count` distinct ids.

    Adversarial ones share the top 40 bits of a hash that anybody can look up.
    """
    match order:
        case "random":
            return np.random.default_rng(1).permutation(8 * count)[:count] * 0x1234567 - 2**40
        case "sorted":
            return np.arange(count)
        case "clustered":
            starts = np.random.default_rng(2).permutation(count)[: count // 1000] * 2**20
            return (starts[:, None] + np.arange(1000)).reshape(-1)
        case "adversarial":
            codes = np.uint64(0x123456789A << 24) + np.random.default_rng(3).permutation(1 << 24)[
                :count
            ].astype(np.uint64)
            return _ids_of_codes(codes)


def _ids_of_codes(codes):
    first, second = (np.uint64(pow(number, -1, 1 << 64)) for number in _MULTIPLIERS)
    with np.errstate(over="ignore"):
        x = codes * second
        x ^= (x >> np.uint64(27)) ^ (x >> np.uint64(54))
        x *= first
        x ^= x >> np.uint64(32)
    return x.view(np.int64)


def gradients_of(count):
    """Another one for each row."""
    return np.random.default_rng(4).uniform(0.5, 2.0, (count, DIM)).astype(np.float32)


def push(cluster, ids, gradients):
    for start in range(0, ids.size, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        cluster.push({TABLE.name: (ids[part], gradients[part])})


def pull(cluster, ids):
    parts = [
        cluster.pull({TABLE.name: ids[at : at + _AT_ONCE]}).rows[TABLE.name]
        for at in range(0, ids.size, _AT_ONCE)
    ]
    return np.concatenate(parts)


def accumulators_after(*gradients):
    """The state of adagrad."""
    return ACCUMULATOR + sum(np.square(gradient) for gradient in gradients)


def values_after(first, second=None):
    """What one or two steps of adagrad make of zeros.

    The second depends on the state that the first left.
    """
    values = -RATE * first / np.sqrt(accumulators_after(first))
    return (
        values
        if second is None
        else values - RATE * second / np.sqrt(accumulators_after(first, second))
    )


class Twin:
    """The rows after any number of steps, of which a part may go back to an earlier state."""

    def __init__(self, count):
        self.values = np.zeros((count, DIM), np.float32)
        self._accumulators = np.full((count, DIM), ACCUMULATOR)

    def push(self, gradients):
        self._accumulators += np.square(gradients)
        self.values -= RATE * gradients / np.sqrt(self._accumulators)

    def copy(self):
        copy = Twin(0)
        copy.values = self.values.copy()
        copy._accumulators = self._accumulators.copy()
        return copy

    def take(self, other, which):
        self.values[which] = other.values[which]
        self._accumulators[which] = other._accumulators[which]
