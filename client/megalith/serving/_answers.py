"""What replicas answer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.client._features.outputs import array_of, parts_of
from megalith.protos import replica_pb2 as pb

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh an answer is.

    Everything that was acknowledged more than `staleness_s` seconds before it came is in it: the
    time that the call took is included. `newest_data_s` is the newest data time of any row, in Unix
    seconds, 0 if rows have none.
    """

    staleness_s: float
    newest_data_s: int
    run_id: str
    versions: tuple[int, ...]
    exported_model: str = ""  # that answered; empty = a replica that follows a job
    checkpoint: str = ""  # that a replica was rolled back to, and that answered
    is_pinned: bool = False  # the replica stays with this version until somebody unpins it


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Rows [ids, dim] by table, and how fresh they are: as the stalest of those that answered."""

    rows: dict[str, F32]
    freshness: Freshness


@dataclass(frozen=True, slots=True)
class FeaturesResult:
    """What the model sees of its features: `result["layout"]` is an array [examples, ...]."""

    layouts: dict[str, tuple[F32, ...]]
    freshness: Freshness

    def __getitem__(self, layout: str) -> F32:
        """The array of a layout; one of type none with several parts has `parts` instead."""
        return array_of(self.layouts, layout)

    def parts(self, layout: str) -> tuple[F32, ...]:
        """The arrays of a layout: one, or for type none one per part."""
        return parts_of(self.layouts, layout)


@dataclass(frozen=True, slots=True)
class PredictResult:
    """What the model says of each example, from 0 to 1.

    `missing` are features and dense columns of the model that were not given: they counted as
    missing in every example.
    """

    predictions: F32
    missing: tuple[str, ...]
    freshness: Freshness


def freshness_from_proto(message: pb.Freshness) -> Freshness:
    return Freshness(
        message.staleness_us / 1e6,
        message.newest_data_s,
        message.run_id,
        tuple(message.versions),
        message.exported_model,
        message.checkpoint,
        message.is_pinned,
    )
