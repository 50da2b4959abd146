"""Ranks that `torchrun` or a scheduler has started, by torch.distributed with gloo.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who they are. A program that has made its process
group already, for DistributedDataParallel for example, shares it.
"""

import atexit
import datetime
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.rendezvous import rendezvous

from megalith.collective.engine import F32, Bytes, Counts, Engine
from megalith.collective.silence import silent
from megalith.errors import RankSilent

_ROLL_CALL_S = 3.0  # for the other ranks that wait to say so


class GlooEngine(Engine):
    """The ranks of a process group on CPUs.

    When a rank dies, its connections close, and calls of the others fail at once. Those that are
    left say so in the store of the group, so that the ones that say nothing can be named.
    """

    name = "gloo"

    def __init__(self, timeout_s: float) -> None:
        timeout = datetime.timedelta(seconds=timeout_s)
        self._store: Any = None
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            store, rank, size = next(rendezvous("env://", timeout=timeout))
            self._store = dist.PrefixStore("megalith", store)
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("gloo", store),
                rank=rank,
                world_size=size,
                timeout=timeout,
            )
            # A thread of the group that drops a tensor while the interpreter ends aborts the
            # process, although all was done.
            atexit.register(self.close)

        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        # Its own, so that calls of the program itself stay apart
        self._group = dist.new_group(backend="gloo", timeout=timeout)

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        received = np.empty((self.size, *values.shape), values.dtype)
        rows = [_tensor(row) for row in received.reshape(self.size, -1)]
        self._call("a gather", dist.all_gather, rows, _tensor(values))
        return received

    def exchange(self, sent: Bytes, sent_counts: Counts, received_counts: Counts) -> Bytes:
        received = np.empty(int(received_counts.sum()), np.uint8)
        self._call(
            "an exchange",
            dist.all_to_all_single,
            _tensor(received),
            _tensor(sent),
            received_counts.tolist(),
            sent_counts.tolist(),
        )
        return received

    def total(self, values: F32) -> F32:
        summed = values.copy()
        self._call("a sum", dist.all_reduce, torch.from_numpy(summed))
        return summed

    def tell_failure(self, reason: str) -> None:
        if self._store is not None:
            try:
                self._store.set(f"failed/{self.rank}", reason)
            except RuntimeError:  # its host is gone
                self._store = None

    def close(self) -> None:
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()

        self._group = None  # the last reference: its threads end here

    def _call(self, what: str, call: Any, *arguments: Any) -> None:
        started = time.monotonic()
        try:
            call(*arguments, group=self._group)
        except RuntimeError as error:
            waited_s = time.monotonic() - started
            raise self._lost(what, waited_s) from error

    def _lost(self, what: str, waited_s: float) -> RankSilent:
        """Which ranks do not say that they are left."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        if self._store is None:
            return silent(self.rank, what, waited_s, ())

        limit = datetime.timedelta(seconds=_ROLL_CALL_S)
        missing = []
        try:
            self._store.set(f"left/{self.rank}", "")
            for rank in others:
                try:
                    self._store.wait([f"left/{rank}"], limit)
                except RuntimeError:
                    missing.append(rank)

            self._store.check(["failed/0"])
        except RuntimeError:  # rank 0 is the host of the store
            missing = [0]

        return silent(self.rank, what, waited_s, missing)


def _tensor(values: NDArray[Any]) -> Any:
    """The bytes of a contiguous array, which stay where they are."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        flat = flat.copy()  # torch warns of arrays that it must not write to

    return torch.from_numpy(flat)
