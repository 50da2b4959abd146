"""Finding the distinct ids of a batch and the server of each.

It is open addressing over the routing hash.

The routing hash is fixed and known. Its place in a table here is its product with a secret odd
number, so that nobody can choose ids that share a place and make the search for distinct ones slow.
"""

import secrets

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.dtypes import I32, I64
from megalith.kernels.jit import kernel
from megalith.kernels.mixing import bucket_of, mix

SECRET = np.uint64(
    secrets.randbits(64) | 1
)  # an argument of kernels: a constant in them would be kept in their cache


@kernel
def distinct(
    secret: np.uint64,
    ids: I64,
    owners: NDArray[np.uint16],
    found: I64,
    servers: I32,
    numbers: I32,
    counts: I64,
) -> int:
    """Number the distinct ids in order of first appearance; how many there are.

    found[k] is distinct id number k and servers[k] its owner, numbers[i] the number of ids[i];
    counts[p] grows by the distinct ids of server p. A cell holds a number; with the ids themselves
    beside it in `found` a probe is one or two cache lines: 106,496 ids of which 39,000 are distinct
    take 0.9 ms on a 2.8 GHz core, np.unique 9.
    """
    bits = 4
    while (1 << bits) < 2 * ids.size:
        bits += 1
    cells = np.full(1 << bits, -1, np.int32)
    mask = np.uint64((1 << bits) - 1)
    count = 0
    shift = np.uint64(64 - bits)
    for i in range(ids.size):
        row_id = ids[i]
        code = mix(np.uint64(row_id))
        cell = (code * secret) >> shift
        number = cells[cell]
        while number >= 0 and found[number] != row_id:
            cell = (cell + np.uint64(1)) & mask
            number = cells[cell]
        if number < 0:
            number = np.int32(count)
            cells[cell] = number
            found[count] = row_id
            server = owners[bucket_of(code)]
            servers[count] = server
            counts[server] += 1
            count += 1
        numbers[i] = number
    return count


@kernel
def number_all(ids: I64, owners: NDArray[np.uint16], servers: I32, counts: I64) -> None:
    """Like `distinct` for ids that are known to be distinct: number i is position i."""
    for i in range(ids.size):
        server = owners[bucket_of(mix(np.uint64(ids[i])))]
        servers[i] = server
        counts[server] += 1


@kernel
def sort_by_server(ids: I64, servers: I32, starts: I64, sorted_ids: I64, positions: I32) -> None:
    """A stable counting sort: sorted_ids[positions[k]] = ids[k].

    `starts` is the first position of each server, used up.
    """
    for k in range(ids.size):
        position = starts[servers[k]]
        starts[servers[k]] = position + 1
        positions[k] = position
        sorted_ids[position] = ids[k]


@kernel
def follow(positions: I32, numbers: I32, slots: I32) -> None:
    """slots[i] = positions[numbers[i]]."""
    for i in range(numbers.size):
        slots[i] = positions[numbers[i]]
