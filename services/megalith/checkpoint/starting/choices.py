"""What a start takes over of a checkpoint, if it is not all of it.

Each choice is made once. A file in the model directory, its marker, says of which checkpoint it was
made. While the job still starts from that checkpoint, the choice holds: a ps that is replaced
leaves out what the others have left out. Once the job has saved, its own checkpoint is restored
whole, although the settings are the same.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from megalith.checkpoint.directory.increments import Chain, Increment
from megalith.checkpoint.format import DENSE_ONLY, FileKind
from megalith.checkpoint.layout import arrow_files, manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location, locate
from megalith.errors import CheckpointDamaged, CheckpointNotFound, InvalidSetting, some_of

logger = logging.getLogger(__name__)

GLOBAL_STEP = "global_step"


@dataclass(frozen=True, slots=True)
class RestoreChoices:
    """By default everything is restored.

    Variables that are cleared are not restored, so that the program creates them anew; with
    `keeps_step` only the global step is. `old_names` has, by the name that a variable gets, its
    name in the checkpoint. `dense_from` is the checkpoint that the variables come from; empty = the
    one of the rows.
    """

    left_out_tables: tuple[str, ...] = ()
    clears_variables: bool = False
    keeps_step: bool = False
    old_names: Mapping[str, str] = field(default_factory=dict)
    dense_from: str = ""

    @property
    def is_everything(self) -> bool:
        if self.left_out_tables or self.clears_variables:
            return False

        return not (self.old_names or self.dense_from)

    @property
    def new_names(self) -> dict[str, str]:
        """By the name in the checkpoint, the name that the variable gets."""
        new_names = {}
        for new, old in self.old_names.items():
            new_names[old] = new

        return new_names

    def takes_variable(self, name: str) -> bool:
        if not self.clears_variables:
            return True

        return self.keeps_step and name == GLOBAL_STEP


EVERYTHING = RestoreChoices()


def parse(
    leave_out_tables: str,
    clear_nn: bool,
    continue_training: bool,
    variable_aliases: str,
    restore_dense: str = "",
) -> RestoreChoices:
    """As settings give them; InvalidSetting for those that contradict each other."""
    tables = _parse_names(leave_out_tables)
    old_names = _parse_aliases(variable_aliases)
    if clear_nn and old_names:
        raise InvalidSetting(
            f"--clear-nn and --variable-aliases={variable_aliases}: variables either begin anew or "
            "keep their values under other names; give one of them"
        )

    if continue_training and not clear_nn:
        raise InvalidSetting("--continue-training goes with --clear-nn; without it steps go on")

    if restore_dense and (clear_nn or old_names):
        raise InvalidSetting(
            f"--restore-dense={restore_dense}: variables either come from another checkpoint, or "
            "begin anew (--clear-nn), or get other names (--variable-aliases); give one of them"
        )

    return RestoreChoices(
        left_out_tables=tables,
        clears_variables=clear_nn,
        keeps_step=continue_training,
        old_names=old_names,
        dense_from=restore_dense,
    )


def _parse_names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    names = []
    for part in text.split(","):
        name = part.strip()
        if name:
            names.append(name)

    return tuple(names)


def _parse_aliases(text: str) -> dict[str, str]:
    old_names: dict[str, str] = {}
    for pair in _parse_names(text):
        before, _, after = pair.partition("=")
        new = before.strip()
        old = after.strip()
        if not (new and old):
            raise InvalidSetting(f"--variable-aliases: {pair!r} is not like new=old")

        if new in old_names or old in old_names.values():
            raise InvalidSetting(f"--variable-aliases: {pair!r} names a variable twice")

        old_names[new] = old

    return old_names


# --- once for each checkpoint ---


class Made(NamedTuple):
    """The choices that hold for a checkpoint, and what people are told about them."""

    choices: RestoreChoices
    notes: tuple[str, ...]


def make(model_dir: Location, chain: Chain, wanted: RestoreChoices) -> Made:
    """Which of the choices hold for this checkpoint; InvalidSetting if it has no such names."""
    choices = EVERYTHING
    notes: list[str] = []

    if wanted.left_out_tables and _is_open(model_dir, chain, _left_out_of(wanted), notes):
        _check_tables(chain.last, wanted.left_out_tables)
        choices = replace(choices, left_out_tables=wanted.left_out_tables)
        names = ", ".join(wanted.left_out_tables)
        notes.append(f"left out, as --leave-out-tables says: {names}")

    if wanted.clears_variables and _is_open(model_dir, chain, _cleared_of(wanted), notes):
        choices = replace(
            choices,
            clears_variables=True,
            keeps_step=wanted.keeps_step,
        )
        step = f"at step {chain.last.step}" if wanted.keeps_step else "at step 0"
        notes.append(f"dense variables begin anew, as --clear-nn says; training goes on {step}")

    if wanted.old_names and _is_open(model_dir, chain, _renamed_of(wanted), notes):
        _check_variables(chain, wanted.old_names)
        choices = replace(choices, old_names=wanted.old_names)
        pairs = [f"{old} is now {new}" for new, old in wanted.old_names.items()]
        renamed = ", ".join(pairs)
        notes.append(f"variables renamed, as --variable-aliases says: {renamed}")

    if wanted.dense_from:
        dense = _dense_checkpoint(wanted.dense_from, chain)
        if _is_open(model_dir, chain, _dense_of(dense), notes):
            choices = replace(choices, dense_from=str(dense))
            notes.append(f"variables of {dense}, as --restore-dense says")

    return Made(choices, tuple(notes))


class _Choice(NamedTuple):
    """One choice as its marker has it."""

    marker: str
    option: str
    text: str


def _left_out_of(wanted: RestoreChoices) -> _Choice:
    text = ",".join(wanted.left_out_tables)
    return _Choice("leave_out_tables", "--leave-out-tables", text)


def _cleared_of(wanted: RestoreChoices) -> _Choice:
    text = "keeping the step" if wanted.keeps_step else "with the step"
    return _Choice("clear_nn", "--clear-nn", text)


def _renamed_of(wanted: RestoreChoices) -> _Choice:
    pairs = [f"{new}={old}" for new, old in wanted.old_names.items()]
    text = ",".join(pairs)
    return _Choice("variable_aliases", "--variable-aliases", text)


def _dense_of(dense: Location) -> _Choice:
    return _Choice("restore_dense", "--restore-dense", str(dense))


def _is_open(model_dir: Location, chain: Chain, choice: _Choice, notes: list[str]) -> bool:
    """Whether a choice still holds; if it is made now, its marker is written."""
    path = model_dir / choice.marker
    directory = chain.directory.absolute()
    of_this = f"{choice.text}\n{directory}\n{chain.base.saved_at_s!r}\n"

    is_there = path.exists()
    found = path.read_text(errors="replace") if is_there else ""
    if found == of_this:
        return True

    was_made = found.startswith(f"{choice.text}\n")
    # A marker of Monolith's says nothing, or something else: then the choice was made there.
    is_of_monolith = is_there and "\n" not in found
    if was_made or is_of_monolith:
        notes.append(
            f"{choice.option} was obeyed by an earlier start, and does not count any more; "
            f"to do it once more, remove {path}"
        )
        return False

    content = of_this.encode()
    stored.write(path, content)
    return True


def _check_tables(content: Manifest, names: Iterable[str]) -> None:
    there = {file.table for file in content.files if file.kind is FileKind.TABLE}
    for name in names:
        if name not in there:
            raise InvalidSetting(
                f"--leave-out-tables: the checkpoint has no table {name!r}; it has {some_of(there)}"
            )


def _check_variables(chain: Chain, old_names: Mapping[str, str]) -> None:
    there = _variable_names(*chain.folders[-1])
    for new, old in old_names.items():
        if old not in there:
            raise InvalidSetting(
                f"--variable-aliases: the checkpoint has no variable {old!r}; it has "
                f"{some_of(there)}"
            )

        if new in there and new not in old_names.values():
            raise InvalidSetting(
                f"--variable-aliases: {new!r} is to get the values of {old!r}, and the checkpoint "
                f"has a variable {new!r}, too; give that one another name"
            )


def _dense_checkpoint(text: str, chain: Chain) -> Location:
    """Where it is; InvalidSetting unless it has all variables of the chain."""
    path = locate(text).absolute()
    try:
        there = _variable_names(path, manifest.read(path))
    except (CheckpointNotFound, CheckpointDamaged) as error:
        raise InvalidSetting(
            f"--restore-dense={text}: {error}; give the path of one checkpoint, such as "
            f"model/{DENSE_ONLY}/model.ckpt-120"
        ) from error

    wanted = _variable_names(*chain.folders[-1])
    missing = wanted - there
    if missing:
        raise InvalidSetting(
            f"--restore-dense={text}: it lacks variables of {chain.directory}: {some_of(missing)}"
        )

    return path


def _variable_names(directory: Location, content: Manifest) -> set[str]:
    names: set[str] = set()
    for file in content.files:
        if file.kind is not FileKind.VARIABLES:
            continue

        manifest.check_size(directory, file)
        with arrow_files.opened(directory, file) as reader:
            column = reader.read_all().column("name")
            names.update(column.to_pylist())

    return names


# --- what is left of a chain ---


def without_tables(chain: Chain, names: Iterable[str]) -> Chain:
    """The chain as if it had never had these tables."""
    gone = frozenset(names)
    base = _without(chain.base, gone)
    increments = []
    for increment in chain.increments:
        content = _without(increment.manifest, gone)
        increments.append(Increment(increment.directory, content))

    return Chain(chain.directory, base, tuple(increments))


def _without(content: Manifest, names: frozenset[str]) -> Manifest:
    files = tuple(file for file in content.files if file.table not in names)
    return replace(content, files=files)
