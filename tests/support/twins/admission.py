"""Naive twins of the admission filters, cell by cell and exact, and a touched-key set over a Python
dict."""

from support.twins.codecs import GOLDEN, MASK, mix


def search(cells, start, signature, layout):
    """The first empty or matching cell of a block within reach; None if all are taken by others."""
    for at in range(start, start + layout.max_steps):
        if cells[at] == 0 or cells[at] >> layout.count_bits == signature:
            return at
    return None


def count_in(cells, start, signature, layout):
    """What a search reads: 0 where it meets an empty cell, the most that can be where it meets
    none."""
    at, limit = search(cells, start, signature, layout), 2**layout.count_bits - 1
    return limit if at is None else int(cells[at]) & limit


def place_of(key, layout):
    """Where the search for an id begins, and what it looks for."""
    start = (mix(key) & 0xFFFFFFFF) * layout.total_size >> 32
    return start, ((key & MASK) >> 17) & (2**layout.signature_bits - 1)


class RingFilter:
    """The ring of blocks, written from its description: one list of cells for each block."""

    def __init__(self, layout):
        self.layout, self.limit = layout, 2**layout.count_bits - 1
        self.blocks = [[0] * layout.num_cells for _ in range(layout.ring)]
        self.elements, self.head, self.increment, self.failures = [0] * layout.ring, 0, 0, 0

    def _behind(self, start, signature):
        for age in range(1, min(self.increment, self.layout.backward) + 1):
            cells = self.blocks[(self.head - age) % self.layout.ring]
            at = search(cells, start, signature, self.layout)
            if at is not None and cells[at]:
                return cells[at] & self.limit
        return 0

    def _present(self, start, signature):
        for ahead in range(self.layout.forward):
            number = (self.head + ahead) % self.layout.ring
            at = search(self.blocks[number], start, signature, self.layout)
            if at is not None:
                return number, at
        return None

    def get(self, key):
        start, signature = place_of(key, self.layout)
        found = self._present(start, signature)
        if found is None:
            return self.limit
        cell = self.blocks[found[0]][found[1]]
        return cell & self.limit if cell else self._behind(start, signature)

    def add(self, key, count):
        """The count before."""
        start, signature = place_of(key, self.layout)
        found = self._present(start, signature)
        if found is None:
            self.failures += 1
            return self.limit
        number, at = found
        is_new = self.blocks[number][at] == 0
        old = self._behind(start, signature) if is_new else self.blocks[number][at] & self.limit
        self.blocks[number][at] = (signature << self.layout.count_bits) + min(
            self.limit, old + count
        )
        if is_new:
            self.elements[number] = min(self.elements[number] + 1, self.layout.block_capacity)
            if self.layout.ring > 1 and self.elements[self.head] >= self.layout.block_capacity - 1:
                self._turn()
        return old

    def _turn(self):
        self.head, self.increment = (self.head + 1) % self.layout.ring, self.increment + 1
        coming = (self.head + 1) % self.layout.ring
        self.blocks[coming], self.elements[coming] = [0] * self.layout.num_cells, 0


def is_admitted_by_chance(threshold, count, is_equal, seed, number):
    """The draw of that number against the chance of the rule, in Python numbers."""
    if threshold <= 0:
        return True
    draw = mix(mix(seed + GOLDEN) + GOLDEN * number) & 0xFFFFFFFF
    chance = 1 - 0.05 ** (count / threshold) if is_equal else min(1.0, count / threshold)
    return draw / (2**32 - 1) < chance or chance == 1


class ExactFilter:
    """What a filter does when no two ids share a cell and none is forgotten."""

    def __init__(self, threshold, max_count=15):
        self.threshold, self.max_count, self.counts = threshold, max_count, {}

    def admit(self, keys, counts):
        return [self._add(int(key), int(count)) for key, count in zip(keys, counts, strict=True)]

    def _add(self, key, count):
        if self.threshold <= 0:
            return True
        old = self.counts.get(key, 0)
        self.counts[key] = min(self.max_count, old + min(count, self.max_count))
        return old >= self.threshold


class DictKeySet:
    def __init__(self, capacity):
        self.capacity, self.keys = capacity, {}

    def add(self, keys):
        dropped = 0
        for key in keys:
            if len(self.keys) > self.capacity:
                dropped += len(self.keys)
                self.keys.clear()
            self.keys[int(key)] = True
        return dropped

    def steal(self):
        keys = list(self.keys)
        self.keys.clear()
        return keys
