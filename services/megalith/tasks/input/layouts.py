"""Columns of data sets that everybody knows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownLayout:
    """Names as the options of `megalith train ctr` have them, in lists with commas."""

    header: str
    label: str
    features: str
    dense: str
    text: str


def _criteo() -> KnownLayout:
    """The click logs of Criteo: a label, 13 counts and 26 hashes, with tabs and without a header.

    Counts are of many sizes and may be missing or negative. A hash such as 12345678 is text.
    """
    counts = [f"int_{number}" for number in range(1, 14)]
    hashes = [f"cat_{number}" for number in range(1, 27)]
    header = ["label", *counts, *hashes]
    logs = [f"{name}:log" for name in counts]
    features = ",".join(hashes)

    return KnownLayout(
        header=",".join(header),
        label="label",
        features=features,
        dense=",".join(logs),
        text=features,
    )


LAYOUTS = {"criteo": _criteo()}
