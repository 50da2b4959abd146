"""A cluster as a feature set sees it, in a dictionary: rows are what the test says, pushes are
recorded."""

import numpy as np

from megalith.client import Pulled


class RecordedRows:
    """`rows` by table and id; an absent id reads zeros. `pushes` has {table: {id: gradient}} of
    every push."""

    def __init__(self, rows=None):
        self.rows = rows or {}
        self.dims, self.pulls, self.pushes = {}, [], []

    def create_tables(self, *configs):
        self.dims |= {config.name: config.dim for config in configs}

    def pull(self, tables=None, variables=()):
        self.pulls.append({table: ids.values.tolist() for table, ids in tables.items()})
        rows = {
            table: np.array(
                [self.rows.get(key, [0] * self.dims[table]) for key in ids.values.tolist()],
                np.float32,
            )
            for table, ids in tables.items()
        }
        return Pulled(rows, {name: np.zeros(1, np.float32) for name in variables})

    def push(self, gradients=None, **others):
        for ids, _ in gradients.values():
            assert len(set(ids.values.tolist())) == len(ids)
        self.pushes.append(
            {
                table: dict(zip(ids.values.tolist(), values.tolist(), strict=True))
                for table, (ids, values) in gradients.items()
            }
        )
        return others

    def pushed(self):
        """Gradients by id of the last push, of all tables together."""
        return {key: row for part in self.pushes[-1].values() for key, row in part.items()}
