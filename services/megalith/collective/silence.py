"""What is said of ranks that do not take part any more."""

from collections.abc import Sequence

from megalith.errors import RankSilent


def silent(rank: int, what: str, waited_s: float, missing: Sequence[int]) -> RankSilent:
    """The error of a rank that has waited in vain; `missing` are the ranks that it waited for."""
    names = ", ".join(f"rank {each}" for each in missing) or "another rank"
    return RankSilent(
        f"rank {rank} has waited {waited_s:.0f} s in {what} for {names}, which is dead, stuck or "
        "slow; if it is slow, raise --sync-timeout-s"
    )
