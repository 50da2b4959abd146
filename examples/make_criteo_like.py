"""Click logs in the layout of Criteo's, made up: label, 13 counts, 26 hashes, with tabs, no header.

    python examples/make_criteo_like.py [FOLDER [EXAMPLES]]

Writes train-0.tsv, train-1.tsv and test.tsv. Some values are missing, as in the real logs.
It prints the AUC of the chances by which the clicks of the test were drawn. No model can be better,
and one that sees the file alone stays below it: a tenth of the values is missing there.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

COUNTS = 13
HASHES = 26
NUM_EXAMPLES = 200_000
MISSING = 0.1


def write(path: Path, num_examples: int, rng: np.random.Generator) -> float:
    """The click depends on the first hashes, in pairs, and on the first count.

    Returns the AUC of the chances by which the clicks were drawn.
    """
    values = np.minimum(rng.zipf(1.3, (num_examples, HASHES)), 50_000) - 1
    counts = rng.poisson(np.exp(rng.normal(1.0, 1.5, (num_examples, COUNTS))))

    logits = -1.0 + 0.3 * np.log1p(counts[:, 0])
    for left, right in ((0, 1), (2, 3), (4, 5)):
        logits += _taste(values[:, left], values[:, right])

    labels = rng.random(num_examples) < 1.0 / (1.0 + np.exp(-logits))
    columns = [labels.astype(int).astype(str)]
    columns += [_text(counts[:, number].astype(str), rng) for number in range(COUNTS)]
    for number in range(HASHES):
        hashed = (values[:, number] * 2_654_435_761 + number * 97) % 2**32
        columns.append(_text(np.char.mod("%08x", hashed), rng))

    lines = map("\t".join, zip(*(column.tolist() for column in columns), strict=True))
    path.write_text("\n".join(lines) + "\n")
    return auc(labels, logits)


def _taste(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
    """What a pair of values adds: the same whenever they meet."""
    mixed = (left % 100 * 7919 + right % 100 * 104_729) % 1009
    return mixed / 1009.0 * 2.0 - 1.0


def _text(column: NDArray[np.str_], rng: np.random.Generator) -> NDArray[np.str_]:
    return np.where(rng.random(column.size) < MISSING, "", column)


def auc(labels: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """The chance that a click has a higher score than an example without one."""
    ranks = scores.argsort().argsort() + 1
    clicks = labels.sum()
    above = ranks[labels].sum() - clicks * (clicks + 1) / 2
    return float(above / (clicks * (labels.size - clicks)))


def main(folder: str = "criteo", num_examples: str = str(NUM_EXAMPLES)) -> None:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    size = int(num_examples) // 10
    write(path / "train-0.tsv", size * 4, rng)
    write(path / "train-1.tsv", size * 4, rng)
    best = write(path / "test.tsv", size * 2, rng)
    print(f"{size * 8:,} examples to train and {size * 2:,} to test in {folder}")
    print(f"no model can have a better AUC in the test than {best:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
