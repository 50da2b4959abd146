"""How the input of a run differs from the one that a checkpoint was saved with, by their names."""

# `megalith train ctr` names files by what they hold, and after that how they are divided.
_FILES = "data-index-"
_SHUFFLED = " shuffled by seed "
_IN_PIECES = "in pieces"


def difference(saved: str, now: str, checkpoint: str) -> str:
    """A sentence about two names that differ; `checkpoint` is the one that has `saved`."""
    are_files = saved.startswith(_FILES) and now.startswith(_FILES)
    if not are_files:
        return f"{checkpoint} was saved with an input {_named(saved)}, this one is {_named(now)}"

    saved_files, *saved_division = _parts(saved)
    files, *division = _parts(now)
    sentences = []
    if files != saved_files:
        sentences.append(f"other files than those of {checkpoint}: all rows of these are trained")

    before = [part for part in saved_division if part not in division]
    after = [part for part in division if part not in saved_division]
    if before or after:
        sentences.append(
            f"{checkpoint} was saved with {', '.join(before)}, this run has {', '.join(after)}"
        )

    return "; ".join(sentences)


def _named(name: str) -> str:
    return f"named {name}" if name else "without a name"


def _parts(name: str) -> list[str]:
    """The files, and what is said of how they are read."""
    read, *division = name.split(", ")
    files, _, seed = read.partition(_SHUFFLED)
    order = f"rows shuffled by seed {seed}" if seed else "rows in the order of the files"
    divided = ["--sharding dynamic" if part == _IN_PIECES else part for part in division]
    return [files, order, *divided]
