"""Who is inside a partition: one writer, or readers who find out afterwards whether a writer came.

A version is even at rest. A writer makes it odd, writes, makes it even again, two higher: `enter`
and `leave`. A reader notes the version, reads without writing a single shared byte (so readers
never slow each other down), and reads again if the version was odd or has changed. Whatever a
reader sees meanwhile stays inside mapped memory, because addresses are reserved once and never
unmapped while the table lives.

No kernel blocks, allocates a Python object or needs the interpreter between `enter` and `leave`.
"""

from megalith.engine.kernels.atomics import (
    compare_exchange,
    fence,
    load_acquire,
    sched_yield,
    store_release,
)
from megalith.engine.kernels.layout import VERSION, Int
from megalith.kernels.dtypes import I64
from megalith.kernels.jit import inlined, kernel

_SPINS = 64  # tries before the CPU is offered to another thread: about 1 us, a block of ids takes 3


@inlined
def try_enter(parts: I64, record: Int) -> bool:
    """Become the partition's writer if there is none."""
    version = load_acquire(parts, record + VERSION)
    if version & 1 or not compare_exchange(parts, record + VERSION, version, version + 1):
        return False
    fence()
    return True


@kernel
def enter(parts: I64, record: Int) -> None:
    """Become the partition's writer; wait for the one inside."""
    tries = 0
    while not try_enter(parts, record):
        tries += 1
        if tries % _SPINS == 0:
            sched_yield()


@inlined
def leave(parts: I64, record: Int) -> None:
    store_release(parts, record + VERSION, parts[record + VERSION] + 1)


@inlined
def take_latch(words: I64, index: Int) -> None:
    """A plain spin lock in words[index]; held for some dozens of instructions."""
    tries = 0
    while not compare_exchange(words, index, 0, 1):
        tries += 1
        if tries % _SPINS == 0:
            sched_yield()


@inlined
def drop_latch(words: I64, index: Int) -> None:
    store_release(words, index, 0)
