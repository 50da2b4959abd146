"""Which parameter server this is in the cluster, and whether a request came to the right one."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels import ownership
from megalith.wire.errors import NotReady, ShardNotOwned, StaleEpoch
from megalith.wire.routing import NUM_BUCKETS, Routing
from megalith.wire.schema import VariableConfig


@dataclass(frozen=True, slots=True)
class Placement:
    """An index in a routing map. Never changes: a new map is a new placement.

    Until the chief has initialized the map's epoch, a table or variable that is missing is a matter of time.
    """

    index: int
    routing: Routing | None = None
    is_initialized: bool = False

    @property
    def epoch(self) -> int:
        """Of the map; 0 = there is none yet."""
        return self.routing.epoch if self.routing else 0

    def checked(self, epoch: int) -> "RoutedPlacement":
        """What a request that was routed at `epoch` may rely on; another epoch than the map's is refused."""
        if self.routing is None or epoch > self.epoch:
            raise NotReady(
                f"ps {self.index} is at epoch {self.epoch}, the request at {epoch}; retry in a moment"
            )
        if epoch < self.epoch:
            raise StaleEpoch(
                f"the request was routed at epoch {epoch}, ps {self.index} is at {self.epoch}"
            )
        return RoutedPlacement(self.index, self.routing)

    def check_initialized(self, what: str) -> None:
        """Raise NotReady about something that is missing, while it may still be created."""
        if not self.is_initialized:
            raise NotReady(
                f"ps {self.index} has no {what} yet: the chief is still creating them; retry in a moment"
            )

    def buckets(self) -> NDArray[np.bool_]:
        """Which buckets this server owns; without a map it may be any."""
        if self.routing is None:
            return np.ones(NUM_BUCKETS, np.bool_)
        return np.asarray(self.routing.owners == self.index)


@dataclass(frozen=True, slots=True)
class RoutedPlacement:
    """A placement in the map by which a request was routed."""

    index: int
    routing: Routing

    def check_owned(self, table: str, keys: NDArray[np.int64]) -> None:
        """Raise ShardNotOwned if any id belongs to another server."""
        if ownership.all_owned(keys, self.routing.owners, self.index):
            return
        owners = self.routing.owner_of(keys)
        foreign = np.flatnonzero(owners != self.index)
        first = foreign[0]
        raise ShardNotOwned(
            f"table {table}: {foreign.size} of {keys.size} ids are not of ps {self.index} at epoch "
            f"{self.routing.epoch}, the first is {int(keys[first])} of ps {int(owners[first])}; refresh routing"
        )

    def check_owned_variable(self, config: VariableConfig) -> None:
        """Raise ShardNotOwned if the variable, or this part of it, belongs to another server."""
        owner = self.routing.owner_of_part(config.name, config.part.index if config.part else 0)
        if owner != self.index:
            raise ShardNotOwned(
                f"variable {config.key} is of ps {owner}, not of ps {self.index}, at epoch {self.routing.epoch}; "
                "refresh routing"
            )
