"""What one request reads: a model, and what is true of it, taken together."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from megalith.errors import ShardNotOwned
from megalith.kernels.dtypes import F32, I64
from megalith.replica.copies.followed_servers import HeldShare
from megalith.replica.copies.model import ServedModel
from megalith.wire.routing import buckets_of


@dataclass(frozen=True, slots=True)
class CopyFreshness:
    """How fresh an answer is; `versions` are those of each ps.

    `run_id` is the run of which every ps has sent everything: after a new run has begun it stays
    the old one, without versions, until rows of the old one are gone. `exported_model` names what a
    replica without a job serves, `checkpoint` what it was rolled back to. A replica that is pinned
    stays where it is.
    """

    staleness_s: float
    versions: tuple[int, ...]
    run_id: str
    newest_data_s: int
    exported_model: str = ""
    checkpoint: str = ""
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model, and how fresh it was when the view was taken: what is read later is not staler.

    Whoever answers a request takes one view, because another model may be served at any moment.
    """

    model: ServedModel
    freshness: CopyFreshness
    share: HeldShare | None = None  # None = all ids

    def width(self, name: str) -> int:
        """Numbers in a row of a table."""
        return self.model.width(name)

    def lookup(self, name: str, ids: I64) -> F32:
        """The rows of ids, zeros for absent ones; ShardNotOwned for ids of another share."""
        if self.share is not None and self.share.count:
            _check_share(self.share, name, ids)

        return self.model.lookup(name, ids)

    def variable(self, name: str) -> NDArray[Any]:
        """The whole value."""
        return self.model.variable(name)


def _check_share(share: HeldShare, name: str, ids: I64) -> None:
    is_foreign = ~share.buckets[buckets_of(ids)]
    if is_foreign.any():
        foreign = ids[is_foreign]
        first = foreign[0]
        raise ShardNotOwned(
            f"table {name}: {foreign.size} of {ids.size} ids are not of "
            f"share {share.index}/{share.count}, which this replica holds; "
            f"the first is {first}"
        )
