"""Naive twins: an admission filter that remembers every id exactly, and a touched-key set over a Python dict."""


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
