"""Choices of what a start takes over, as settings give them and as their markers keep them."""

import pytest

from megalith.checkpoint.directory.increments import read_chain
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.starting import choices
from megalith.checkpoint.starting.choices import EVERYTHING, RestoreChoices
from megalith.errors import InvalidSetting


def chain_of(model_dir, step, saved_at_s=1.0):
    folder = model_dir / f"model.ckpt-{step}"
    folder.mkdir()
    files = tuple(ShardFile(name, "table", name, 1, 1, "00") for name in ("a", "b"))
    manifest.write(folder, Manifest(step, 1, saved_at_s, files, save_id="00"))
    return read_chain(folder)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("", True, False, "a=b"), "--clear-nn and --variable-aliases=a=b"),
        (("", False, True, ""), "--continue-training goes with --clear-nn"),
        (("", False, False, "a"), "'a' is not like new=old"),
        (("", False, False, "a=b,c=b"), "'c=b' names a variable twice"),
        (("", False, False, "a=b,a=c"), "'a=c' names a variable twice"),
        (("", True, False, "", "d"), "--restore-dense=d: .*--clear-nn"),
        (("", False, False, "a=b", "d"), "--restore-dense=d: .*--variable-aliases"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, complaint):
    with pytest.raises(InvalidSetting, match=complaint):
        choices.parse(*settings)


def test_settings_are_read():
    assert choices.parse("", False, False, "") == EVERYTHING
    parsed = choices.parse(" a, b", False, False, "new = old, n2=o2")
    assert parsed == RestoreChoices(("a", "b"), False, False, {"new": "old", "n2": "o2"})
    assert parsed.new_names == {"old": "new", "o2": "n2"}


def test_a_choice_holds_while_the_job_starts_from_that_checkpoint(tmp_path):
    wanted = RestoreChoices(("a",))
    first = chain_of(tmp_path, 1)
    for _ in range(2):
        made = choices.make(tmp_path, first, wanted)
        assert made.choices == wanted
        assert made.notes == ("left out, as --leave-out-tables says: a",)

    second = chain_of(tmp_path, 2)
    made = choices.make(tmp_path, second, wanted)
    assert made.choices == EVERYTHING
    assert "--leave-out-tables was obeyed by an earlier start" in made.notes[0]

    other = RestoreChoices(("a", "b"))
    assert choices.make(tmp_path, second, other).choices == other, "another choice is a new one"
    (tmp_path / "leave_out_tables").unlink()
    assert choices.make(tmp_path, second, wanted).choices == wanted


@pytest.mark.parametrize("content", ["", "clean nn done!"])
def test_a_marker_of_monolith_s_counts(tmp_path, content):
    (tmp_path / "clear_nn").write_text(content)
    made = choices.make(tmp_path, chain_of(tmp_path, 1), RestoreChoices(clears_variables=True))
    assert made.choices == EVERYTHING
