"""What the command line says of a cluster, in words; without tables, which need an import more."""

import time
from collections.abc import Iterable

from megalith.control import BarrierStatus, ClusterStatus, MemberStatus
from megalith.runtime.counting import counted

_HELD_BY = {
    "operator": "stopped by an operator: {}",
    "save": "held by a save: {}",
    "health": "held because of {}",
    "platform": "suspended by the platform: {}",
    "action": "ended by the file {} in the model directory",
}

PARTS_OF_FILES = "parts of files"
_SINGULAR = {
    "batches": "batch",
    "messages": "message",
    "files": "file",
    PARTS_OF_FILES: "part of a file",
}


def held_by(barrier: BarrierStatus) -> list[str]:
    """Who holds training and why, a phrase for each holder."""
    phrases = []
    for holder in barrier.holders:
        wording = _HELD_BY.get(holder.kind, f"held by {holder.kind}: {{}}")
        phrase = wording.format(holder.reason)
        if holder.reason == holder.kind:  # no reason was given
            phrase, _, _ = phrase.partition(":")
        if holder.action:
            phrase += f" (action {holder.action})"

        phrases.append(phrase)

    return phrases


def left_out(status: ClusterStatus) -> dict[str, int]:
    """What workers have read or found and not trained, by what it is; nothing that is 0."""
    counts = {"batches": 0, "messages": 0}
    late = [member.late_files for member in status.members if member.late_files]
    for member in status.members:
        counts["batches"] += member.skipped_batches
        counts["messages"] += member.skipped_messages

    counts[files_word(len(late), is_handed_out=status.pieces is not None)] = sum(late)
    return {what: count for what, count in counts.items() if count}


def files_word(num_counting: int, *, is_handed_out: bool) -> str:
    """What the sum of the late files of so many workers is a number of.

    Files that are handed out are counted by one worker each. Otherwise each worker counts those of
    which it has left out its part, so that a file may be in the counts of several.
    """
    return "files" if is_handed_out or num_counting < 2 else PARTS_OF_FILES


def left_out_words(status: ClusterStatus) -> str:
    """The same as words, for example "1 file, 3 batches"; empty if it is nothing."""
    counts = left_out(status)
    words = [counted(count, _SINGULAR[what], what) for what, count in counts.items()]
    return ", ".join(words)


def hook_errors(members: Iterable[MemberStatus]) -> int:
    """Calls of hooks that raised in all workers, while training went on."""
    return sum(member.hook_errors for member in members)


def hook_failures(members: Iterable[MemberStatus]) -> list[str]:
    """Each hook of a worker that raised while training went on, and its first error."""
    failures = []
    for member in members:
        for failure in member.hook_failures:
            failures.append(f"{member.name}: the hook {failure}")

    return failures


def figure_text(name: str, value: float) -> str:
    """A figure of an evaluation; some are counts."""
    is_count = name == "missing_values"
    return f"{value:,.0f}" if is_count else f"{value:.5f}"


def journal_line(error: str) -> str:
    """What follows from a journal that cannot be written."""
    return (
        f"cannot be written ({error}); "
        "if the controller dies now, the next one forgets a stop of training"
    )


def increments_line(error: str, since_s: float) -> str:
    """Since when increments fail, why, and what follows."""
    since = time.strftime("%H:%M:%S", time.localtime(since_s))
    return (
        f"fail since {since}: {error}; a ps that dies now loses what it learned since the last "
        "save or increment"
    )


def duration(seconds: float) -> str:
    """A time that one can read."""
    if seconds < 100:
        return f"{seconds:.1f} s"

    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.0f} min"

    return f"{minutes / 60:.0f} h"


def size(count: int) -> str:
    """Bytes in a unit that one can read."""
    if count < 10**9:
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e9:.2f} GB"
