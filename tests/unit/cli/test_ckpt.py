"""`megalith ckpt` as a person or a script meets it: what it prints, and how it ends."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.inspection import files
from megalith.cli.app import app
from support import checkpoints, monolith_files

NOBODY = 65534
IDS = np.arange(2000) * 0x0123456789ABCDE


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """Two checkpoints: 500 rows are only in the first, 100 were changed."""
    model_dir = tmp_path_factory.mktemp("jobs") / "model"
    values = np.ones((IDS.size, 3), np.float32)
    variables = {"dense/kernel": np.ones((4, 2), np.float32)}
    first = [(checkpoints.ITEM, IDS, values, 7)]
    checkpoints.write(checkpoints.stores_with(first, variables), model_dir, 120)
    values[600:700] += 1
    second = [(checkpoints.ITEM, IDS[500:], values[500:], 7)]
    checkpoints.write(checkpoints.stores_with(second, variables), model_dir, 240)
    return model_dir


def run(*words, expected=0):
    result = CliRunner().invoke(app, ["ckpt", *map(str, words)], prog_name="megalith")
    assert result.exit_code == expected, result.output
    assert "Traceback" not in result.output
    return result


def columns_of(line):
    return re.split(r"  +", line.strip())


def test_ls_has_a_line_for_each_checkpoint(model_dir):
    lines = run("ls", model_dir).stdout.splitlines()
    assert columns_of(lines[0]) == ["checkpoint", "state", "step", "age", "rows", "size"]
    first = columns_of(lines[1])
    assert first[:3] == ["model.ckpt-120", "listed", "120"]
    assert columns_of(lines[2])[:2] == ["model.ckpt-240", "newest"]
    assert first[4] == "2,000"

    answer = json.loads(run("ls", model_dir, "--json").stdout)
    assert [entry["rows"] for entry in answer["entries"]] == [2000, 1500]


def test_ls_of_a_directory_without_checkpoints_says_so(tmp_path):
    assert "has no checkpoints" in run("ls", tmp_path).stdout


def test_show_names_tables_variables_and_files(model_dir):
    text = run("show", model_dir / "model.ckpt-120").stdout
    assert "step 120" in text
    assert "2,000 rows" in text
    assert "1 ftrl + 2 adagrad" in text
    assert re.search(r"dense/kernel +float32 +\[4, 2\] +adagrad", text)
    for path in (model_dir / "model.ckpt-120").glob("*.arrow"):
        assert path.name in text

    answer = json.loads(run("show", model_dir, "--json").stdout)
    assert answer["step"] == 240
    assert answer["tables"][0]["segments"][0]["optimizer"] == "ftrl"


def test_show_names_the_features_of_a_table_that_is_named_by_a_hash(tmp_path):
    merged = replace(checkpoints.ITEM, name=32 * "0", features=("cid", "gid"))
    rows = [(merged, IDS, np.ones((IDS.size, 3), np.float32), 7)]
    path = checkpoints.write(checkpoints.stores_with(rows), tmp_path, 1)
    assert f"features of {32 * '0'}: cid, gid" in run("show", path).stdout


def test_everything_that_is_shown_fits_80_columns(model_dir, tmp_path):
    texts = [
        run("ls", model_dir),
        run("show", model_dir),
        run("prune", model_dir, "--keep", 1),
        run("--help"),
    ]
    for command in ("ls", "show", "verify", "diff", "export", "import", "prune"):
        texts.append(run(command, "--help"))
    for text in texts:
        for line in text.stdout.splitlines():
            is_path = str(model_dir) in line
            assert len(line) <= 80 or is_path, line


def test_verify_ends_with_0_for_a_whole_checkpoint_and_1_for_a_damaged_one(model_dir, tmp_path):
    whole = model_dir / "model.ckpt-240"
    assert "is whole" in run("verify", whole).stdout
    assert json.loads(run("verify", whole, "--json").stdout)["is_whole"] is True

    damaged = tmp_path / "model.ckpt-240"
    damaged.mkdir()
    for path in whole.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    file = next(damaged.glob("table-*"))
    file.write_bytes(file.read_bytes()[:-1])
    result = run("verify", damaged, expected=1)
    assert f"{file}: has {file.stat().st_size} bytes" in result.stderr
    answer = json.loads(run("verify", damaged, "--json", expected=1).stdout)
    assert [problem["file"] for problem in answer["problems"]] == [file.name]


def test_diff_counts_rows_and_names_the_largest_changes(model_dir):
    a = model_dir / "model.ckpt-120"
    b = model_dir / "model.ckpt-240"
    text = run("diff", a, b).stdout
    line = next(line for line in text.splitlines() if line.startswith("item "))
    assert columns_of(line) == ["item", "500", "0", "100", "0", "1,400"]
    assert "largest changes of table item" in text
    assert "1 variable equal, 0 not" in text

    answer = json.loads(run("diff", a, b, "--json", "--memory-mb", 1).stdout)
    assert answer["tables"][0]["changed"] == 100
    assert answer["is_equal"] is False
    assert "both hold the same model" in run("diff", a, a).stdout


def test_export_writes_files_and_refuses_to_replace_them(model_dir, tmp_path):
    out = tmp_path / "rows"
    text = run("export", model_dir, "--format", "csv", "--out", out).stdout
    assert columns_of(text.splitlines()[1]) == [f"{out}/item.csv", "1,500"]
    assert len((out / "item.csv").read_text().splitlines()) == 1501
    result = run("export", model_dir, "--format", "csv", "--out", out, expected=1)
    assert result.stderr.startswith(f"megalith ckpt export: {out}/item.csv is there already")


def test_import_makes_a_model_directory_and_says_what_it_left_out(tmp_path):
    assets = tmp_path / "old" / "model.ckpt-9.assets"
    adagrad = [("adagrad", {"norm": [1.0]})]
    entries = [monolith_files.entry(number, [1.0], adagrad) for number in range(5)]
    entries.append(monolith_files.entry(9, [np.nan], adagrad))
    monolith_files.write_table(assets, "item", [monolith_files.records(entries)])
    (assets / "hash_filter_0-00000-of-00001").write_bytes(b"")

    text = run("import", tmp_path / "old", "--out", tmp_path / "model").stdout
    assert columns_of(text.splitlines()[1]) == ["item", "1:adagrad", "5", "1"]
    assert "1 entry with NaN or infinity" in text
    assert "not imported: 1 file of admission filters" in text
    assert "is whole" in run("verify", tmp_path / "model").stdout

    again = run("import", assets, "--out", tmp_path / "model", expected=1)
    assert "has checkpoints already" in again.stderr
    wrong = run("import", assets, "--out", tmp_path / "m", "--rename", "x", expected=2)
    assert "--rename: x is not like TABLE=" in wrong.stderr


def test_prune_removes_only_with_yes(model_dir, tmp_path):
    copy = tmp_path / "model"
    for path in model_dir.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(model_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())

    assert "with --yes, 1 folder would be removed" in run("prune", copy, "--keep", 1).stdout
    assert (copy / "model.ckpt-120").exists()
    answer = json.loads(run("prune", copy, "--keep", 1, "--yes", "--json").stdout)
    assert [each["name"] for each in answer["removals"]] == ["model.ckpt-120"]
    assert not (copy / "model.ckpt-120").exists()
    assert "nothing to remove" in run("prune", copy, "--keep", 1).stdout


def test_prune_names_checkpoints_in_the_order_of_their_steps(tmp_path):
    values = np.ones((IDS.size, 3), np.float32)
    for step in (1000, 900, 20):
        stores = checkpoints.stores_with([(checkpoints.ITEM, IDS, values, 7)], {})
        checkpoints.write(stores, tmp_path, step)

    lines = run("prune", tmp_path, "--keep", 1).stdout.splitlines()
    names = [columns_of(line)[0] for line in lines[1:4]]
    assert names == ["model.ckpt-20", "model.ckpt-900", "model.ckpt-1000"]


def test_a_reader_that_has_seen_enough_is_no_error(model_dir):
    command = f"{sys.executable} -m megalith ckpt show {model_dir} --json | true"
    result = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    assert result.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "{}/nothing"),
        ("show", "{}/nothing"),
        ("verify", "{}/nothing"),
        ("diff", "{}/nothing", "{}"),
        ("export", "{}/nothing", "--out", "{}/out"),
        ("import", "{}/nothing", "--out", "{}/out"),
        ("prune", "{}/nothing", "--keep", "1"),
    ],
)
def test_what_is_not_there_is_one_line_that_names_it(tmp_path, words):
    result = run(*(word.format(tmp_path) for word in words), expected=1)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"megalith ckpt {words[0]}: ")
    assert str(tmp_path) in line
    assert not (tmp_path / "out").exists()


@contextlib.contextmanager
def as_nobody():
    """Root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_file_that_may_not_be_read_is_one_line_that_names_it_and_the_way_out(model_dir):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "model.ckpt-1"
        shutil.copytree(model_dir / "model.ckpt-120", checkpoint)
        os.chmod(folder, 0o755)
        run("show", folder, expected=1)  # nobody may not be able to import what an error needs
        (checkpoint / MANIFEST).chmod(0)
        with as_nobody():
            result = run("show", checkpoint, expected=1)

    (line,) = result.stderr.splitlines()
    assert f"{checkpoint / MANIFEST} may not be read by user" in line
    assert "or start as the user who owns it" in line


def test_a_manifest_of_another_version_is_one_line(model_dir, tmp_path):
    (tmp_path / MANIFEST).write_text('{"format": 99}')
    for command in ("show", "verify"):
        result = run(command, tmp_path, expected=1)
        assert "format 99" in result.stderr
        assert MANIFEST in result.stderr


@pytest.mark.parametrize("command", ["verify", "export"])
def test_ctrl_c_ends_a_command_without_a_trace(model_dir, tmp_path, monkeypatch, command):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "open_rows", interrupted)
    monkeypatch.setattr(files, "check_file", interrupted)
    out = ("--out", tmp_path / "out") if command == "export" else ()
    result = run(command, model_dir, *out, expected=130)
    assert result.stdout == ""
    assert not list(tmp_path.glob("out/*"))


def test_nas_weights_are_the_values_of_the_first_variable_with_that_name(tmp_path):
    gradients = {
        "b/arch_weights": np.float32([1.0, 2.0]),
        "a/arch_weights": np.float32([[0.5, 0.8]]),
        "dense": np.ones(4, np.float32),
    }
    checkpoints.write(checkpoints.stores_with([], gradients), tmp_path, 120)
    shown = json.loads(run("nas-weights", tmp_path).stdout)
    # One step of Adagrad from 0, at the rate 0.1.
    expected = [-0.1 * g / np.sqrt(0.1 + g * g) for g in (0.5, 0.8)]
    assert all(isinstance(text, str) for text in shown)
    np.testing.assert_allclose([float(text) for text in shown], expected, rtol=1e-5)

    answer = json.loads(run("nas-weights", tmp_path, "--name", "dense", "--json").stdout)
    assert (answer["variable"], answer["step"], len(answer["weights"])) == ("dense", 120, 4)


def test_nas_weights_that_are_not_there_are_said_with_what_is(model_dir):
    result = run("nas-weights", model_dir, expected=1)
    assert "has no variable with 'arch_weights' in its name; it has dense/kernel" in result.stderr
