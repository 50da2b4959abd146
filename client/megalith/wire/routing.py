"""Which ps owns an id: 1024 hash buckets, assigned to servers by a map with an epoch.

    id -> mix64 -> top 10 bits = bucket -> owners[bucket] = ps index -> addresses[ps index]

The hash and the bucket count are protocol: every client, every server and every checkpoint relies
on them.
"""

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.errors import InvalidRequest, ShardNotOwned, WrongRun
from megalith.kernels.mix64 import (
    BUCKET_BITS,
    BUCKET_SHIFT,
    FACTOR_1,
    FACTOR_2,
    SHIFT_1,
    SHIFT_2,
    SHIFT_3,
)

NUM_BUCKETS = 1 << BUCKET_BITS
_OWNER = np.dtype("<u2")


def ps_names(indices: Iterable[int]) -> str:
    """Parameter servers as a message names them: `ps-0, ps-3`."""
    return ", ".join(f"ps-{index}" for index in indices)


def mix64(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The splitmix64 finalizer.

    Patterned ids (multiples, slots in the high bits) spread evenly over all bits.
    """
    x = ids.astype(np.uint64)
    x ^= x >> SHIFT_1
    x *= FACTOR_1
    x ^= x >> SHIFT_2
    x *= FACTOR_2
    x ^= x >> SHIFT_3
    return x


def buckets_of(ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """The bucket of each id, 0..1023."""
    buckets = mix64(ids) >> BUCKET_SHIFT
    return buckets.astype(np.intp)


def id_of_name(name: str) -> int:
    """A variable is routed like an id: by this hash of its name."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def part_owner(owners: NDArray[np.uint16], num_ps: int, name: str, index: int) -> int:
    """The ps index of part `index` of a variable.

    The parts go round the servers, from the one that owns the name.
    """
    return (int(owners[_bucket_of_name(name)]) + index) % num_ps


@functools.lru_cache(1 << 14)
def _bucket_of_name(name: str) -> int:
    """Asked for each variable of each step.

    The hash of a name costs 20 us, twenty times what remembering it does.
    """
    ids = np.array([id_of_name(name)], np.int64)
    return int(buckets_of(ids)[0])


def even_owners(num_ps: int) -> NDArray[np.uint16]:
    """Buckets in contiguous runs whose lengths differ by at most one."""
    return (np.arange(NUM_BUCKETS) * num_ps // NUM_BUCKETS).astype(_OWNER)


def share_of_buckets(index: int, count: int) -> NDArray[np.bool_]:
    """Which buckets the share `index` of `count` equal ones has; a count of 0 has all."""
    if count == 0:
        return np.ones(NUM_BUCKETS, np.bool_)

    if not (0 <= index < count <= NUM_BUCKETS):
        raise InvalidRequest(f"share {index} of {count} does not exist; 0/{count} is the first")

    return np.asarray(even_owners(count) == index)


def encode_owners(owners: NDArray[np.uint16]) -> bytes:
    return owners.astype(_OWNER).tobytes()


def decode_owners(data: bytes) -> NDArray[np.uint16]:
    if len(data) != NUM_BUCKETS * _OWNER.itemsize:
        raise InvalidRequest(
            f"bucket owners: {len(data)} bytes, need {NUM_BUCKETS * _OWNER.itemsize}"
        )

    return np.frombuffer(data, _OWNER)


@dataclass(frozen=True, slots=True)
class Routing:
    """One epoch of the map of one run. `addresses` and `instances` are indexed by ps index.

    An instance names a process: the replacement of a ps has another one, also at the same address.
    """

    epoch: int
    addresses: tuple[str, ...]
    owners: NDArray[np.uint16]
    run_id: str = ""
    instances: tuple[str, ...] = ()

    def address_of(self, index: int) -> str:
        """host:port of a ps index; ShardNotOwned for one that an earlier map had."""
        if index >= len(self.addresses):
            raise ShardNotOwned(
                f"the call was split for a map with ps-{index}; the map of epoch {self.epoch} has "
                f"{len(self.addresses)} parameter servers. "
                "Make the call again: it is then split by the new map "
                "(of a push, what the other servers have answered is applied already)"
            )

        return self.addresses[index]

    def owner_of(self, ids: NDArray[np.int64]) -> NDArray[np.uint16]:
        """The ps index of each id."""
        return self.owners[buckets_of(ids)]

    def owner_of_name(self, name: str) -> int:
        """The ps index of a variable."""
        return self.owner_of_part(name, 0)

    def owner_of_part(self, name: str, index: int) -> int:
        """The ps index of part `index` of a variable.

        That of part 0, or of the whole, is the owner of its name.
        """
        return part_owner(self.owners, len(self.addresses), name, index)


def check_run(named: str, present: str, who: str) -> None:
    """WrongRun unless the run that a client names is the one that `who` is in."""
    if named == present:
        return

    client = f"of run {named}" if named else "of no run"
    raise WrongRun(
        f"this client is {client}, {who} is in run {present}: "
        "another job, or the same one begun anew. "
        "Its rows are not those that the client knows. "
        "Nothing was done; to use this run, close the client and connect again"
    )
