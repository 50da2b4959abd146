"""What the command line says of a cluster, in words; without tables, which need an import more."""

from megalith.control import BarrierStatus

_HELD_BY = {
    "operator": "stopped by an operator: {}",
    "save": "held by a save: {}",
    "health": "held because of {}",
    "platform": "suspended by the platform: {}",
    "action": "held by a stop that was written to a file: {}",
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


def journal_line(error: str) -> str:
    """What follows from a journal that cannot be written."""
    return (
        f"cannot be written ({error}); "
        "if the controller dies now, the next one forgets a stop of training"
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
