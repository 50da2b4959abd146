"""Counts in messages for people."""


def counted(count: int, singular: str, plural: str = "") -> str:
    """`1 file`, `2 files`; without `plural` an s makes it."""
    if count == 1:
        return f"1 {singular}"

    plural = plural or f"{singular}s"
    return f"{count:,} {plural}"
