"""Naive twins of the table and of its kernels: a dict of numpy rows, and plain sorting."""

import numpy as np

from megalith.engine.table.secret import secret_of
from megalith.kernels.dtypes import F32, I64

DAY_S = 86400
MULTIPLY_0, MULTIPLY_1, MULTIPLY_2 = 0x9E3779B97F4A7C15, 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
SECRET = secret_of(MULTIPLY_0, MULTIPLY_1, MULTIPLY_2)  # of tables whose codes a test has to know


def code_of(key: int) -> int:
    """Multiplications and shifts in Python integers; the code in a table of SECRET."""
    x = key * MULTIPLY_0 % (1 << 64)
    x = (x ^ (x >> 32)) * MULTIPLY_1 % (1 << 64)
    return (x ^ (x >> 27)) * MULTIPLY_2 % (1 << 64)


def id_of(code: int) -> int:
    """The key that has a code: the inverse of `code_of`."""
    x = code * pow(MULTIPLY_2, -1, 1 << 64) % (1 << 64)
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(MULTIPLY_1, -1, 1 << 64) % (1 << 64)
    x = (x ^ (x >> 32)) * pow(MULTIPLY_0, -1, 1 << 64) % (1 << 64)
    return x - (1 << 64) if x >> 63 else x


def walk(keys: list[int]) -> list[int]:
    """Keys in the order of a walk over a table: by code."""
    return sorted(keys, key=code_of)


def overdue_s(key: int, time_s: int, expire_s: I64, now_s: int) -> int:
    return now_s - time_s - int(expire_s[(key >> 48) & 0x7FFF])


def group(partitions: I64) -> tuple[I64, I64]:
    """Positions in the order of their partitions, stable, and how many there are of each."""
    return np.argsort(partitions, kind="stable"), np.bincount(partitions, minlength=32)


def distinct(keys: I64) -> tuple[I64, I64]:
    """Positions of first appearances in order, and the number of each key among them."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[inverse]


class NaiveTable:
    """One Adagrad segment, initial value 0 and accumulator 0.1, row by row."""

    def __init__(self, dim: int, expire_days: int = 36500) -> None:
        self.dim, self.expire_s = dim, expire_days * DAY_S
        self.rows: dict[int, tuple[F32, F32, int]] = {}
        self.now_s = 0

    def _row(self, key: int) -> tuple[F32, F32]:
        if key in self.rows:
            return self.rows[key][:2]
        return np.zeros(self.dim, np.float32), np.full(self.dim, 0.1, np.float32)

    def _note_time(self, time_s: int) -> None:
        """The first time of all is given to the rows that have none."""
        if not self.now_s:
            self.rows = {key: (*row[:2], row[2] or time_s) for key, row in self.rows.items()}
        self.now_s = max(self.now_s, time_s)

    def _time(self, key: int, time_s: int) -> int:
        """Times never go back.

        A write without one leaves the row its own, and starts a new row at the newest.
        """
        if key in self.rows:
            return max(self.rows[key][2], time_s)
        return time_s or self.now_s

    def lookup(self, keys: I64) -> F32:
        return np.array([self._row(int(key))[0] for key in keys], np.float32).reshape(
            len(keys), self.dim
        )

    def assign(self, keys: I64, values: F32, time_s: int) -> None:
        self._note_time(time_s)
        for key, value in zip(keys.tolist(), values, strict=True):
            self.rows[key] = (value.copy(), self._row(key)[1], self._time(key, time_s))

    def assign_add(self, keys: I64, values: F32, time_s: int) -> None:
        self._note_time(time_s)
        for key, value in zip(keys.tolist(), values, strict=True):
            weights, norm = self._row(key)
            self.rows[key] = (weights + value, norm, self._time(key, time_s))

    def apply_gradients(self, keys: I64, grads: F32, rate: float, time_s: int) -> None:
        self._note_time(time_s)
        for key, grad in zip(keys.tolist(), grads, strict=True):
            weights, norm = self._row(key)
            norm = norm + grad * grad
            weights = weights - np.float32(rate) / np.sqrt(norm) * grad
            self.rows[key] = (weights, norm, self._time(key, time_s))

    def apply_summed(self, keys: I64, grads: F32, rate: float, time_s: int) -> None:
        first, number = distinct(keys)
        sums = np.zeros((first.size, self.dim), np.float32)
        np.add.at(sums, number, grads)
        self.apply_gradients(keys[first], sums, rate, time_s)

    def reinitialize(self, keys: I64, time_s: int) -> list[int]:
        status = [int(key in self.rows or key in keys[:i]) for i, key in enumerate(keys.tolist())]
        for key in keys.tolist():
            latest_s = self._time(key, time_s)
            self.rows.pop(key, None)
            self.rows[key] = (*self._row(key), latest_s)
        return status

    def erase(self, keys: I64) -> int:
        return sum(self.rows.pop(key, None) is not None for key in keys.tolist())

    def expire(self) -> int:
        old = [key for key, row in self.rows.items() if self.now_s - row[2] >= self.expire_s]
        for key in old:
            del self.rows[key]
        return len(old)
