"""Whether a parameter server is well: how much memory its process has, and what it may have."""

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """`complaint` is empty while all is well."""

    resident_bytes: int
    memory_limit_bytes: int
    complaint: str


def check(memory_limit_bytes: int) -> MemoryUse:
    """The health of this process now. 0 = no limit."""
    resident = resident_bytes()
    is_over = 0 < memory_limit_bytes <= resident
    complaint = (
        f"Memory limit exceeded. Current: {resident}, Limit: {memory_limit_bytes}"
        if is_over
        else ""
    )

    return MemoryUse(resident, memory_limit_bytes, complaint)


def resident_bytes() -> int:
    """Memory that this process has in RAM; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
