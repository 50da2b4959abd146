"""One style for the whole command line: help, mistakes, options on both sides, imports."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from megalith.cli.app import app
from megalith.runtime.config.commands import Command, Group


def invoke(*words, **settings):
    return CliRunner().invoke(app, list(words), prog_name="megalith", **settings)


def tree(command, path=()):
    """Every command with the words that lead to it."""
    yield path, command
    if isinstance(command, Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from tree(command.get_command(context, name), (*path, name))


TREE = dict(tree(app))
PATHS = [" ".join(path) for path in TREE]


@pytest.mark.parametrize("path", PATHS)
def test_every_command_has_both_help_options_and_fits_80_columns(path):
    words = path.split()
    short, long = invoke(*words, "-h"), invoke(*words, "--help")
    assert (short.exit_code, long.exit_code) == (0, 0)
    assert short.stdout == long.stdout
    lines = short.stdout.splitlines()
    assert lines[0].startswith(f"Usage: {' '.join(['megalith', *words])}")
    assert max(map(len, lines)) <= 80 or "Examples:" in lines


@pytest.mark.parametrize(
    "path", [path for path in PATHS if isinstance(TREE[tuple(path.split())], Group)]
)
def test_a_group_names_commands_that_exist_and_have_a_help(path):
    group = TREE[tuple(path.split())]
    for section in group.sections.values():
        for lazy in section:
            command = lazy.load()
            assert command.name == lazy.name
            assert command.help, lazy.name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("up --nump-s 3", "megalith up: --nump-s is no option; did you mean --num-ps?"),
        ("up --bogus 3", "megalith up: --bogus is no option"),
        ("up --num-ps", "megalith up: --num-ps needs a value"),
        ("up --num-ps 0", "megalith up: --num-ps=0: outside 1..1024"),
        ("up --num-ps two", "megalith up: --num-ps='two': expected a whole number"),
        ("up --ps 0", "megalith up: --ps=0: outside 1..1024"),
        ("train --workers=two", "megalith train: --workers='two': expected a whole number"),
        ("train --workers 1 --ps two", "megalith train: --ps='two': expected a whole number"),
        ("up --log-level loud", "megalith up: --log-level=loud: expected debug, info, warning or error"),
        ("train --workers 0", "megalith train: train needs workers and an end: --num-workers, and --num-examples or --max-steps, above 0"),
        ("ps", "megalith ps: neither --controller nor --model-dir is given, nor --discovery; one of them must say where to join"),
        ("tarin", "megalith: tarin is no command; did you mean train?"),
        ("ctl statsu", "megalith ctl: statsu is no command; did you mean status?"),
        ("ctl --jsno status", "megalith ctl: --jsno is no option; did you mean --json?"),
        ("ctl status --wacth", "megalith ctl status: --wacth is no option; did you mean --watch?"),
        ("ctl status --every-s 0", "megalith ctl status: --every-s=0.0: not in the range x>=0.1"),
        ("ctl status now", "megalith ctl status: Got unexpected extra argument (now)"),
        ("ctl app restart", "megalith ctl app restart: PROCESS is not given"),
        ("ctl app restart-policy -1", "megalith ctl app restart-policy: RESTARTS=-1: not in the range x>=0"),
        ("ctl resume --holder me", "megalith ctl resume: --holder=me: not one of 'operator', 'platform'"),
        ("completion tcsh", "megalith completion: SHELL=tcsh: not one of 'bash', 'zsh', 'fish'"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_answered_by_one_line_and_exit_status_2(line, message):
    done = invoke(*line.split())
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"{message}\n")


@pytest.mark.parametrize("words", [(), ("ctl",), ("ctl", "app")])
def test_a_group_alone_shows_its_help(words):
    done = invoke(*words)
    assert done.exit_code == 2
    assert done.stdout == invoke(*words, "--help").stdout


@pytest.mark.parametrize("path", [("ctl",), ("ctl", "app")])
def test_the_line_that_ctl_shows_of_a_command_is_the_first_of_its_help(path):
    group = dict(tree(app))[path]
    listed = [lazy for commands in group.sections.values() for lazy in commands]
    assert len(listed) >= 9
    for lazy in listed:
        command = lazy.load()
        first_line, _, _ = command.help.strip().partition("\n")
        assert (command.name, first_line) == (lazy.name, lazy.summary)


def test_the_settings_that_matter_come_first():
    text = invoke("up", "--help").stdout
    first = text.index("Most used:")
    assert first < text.index("--model-dir") < text.index("--num-ps") < text.index("Training:")
    assert "--row-dtype [float32|float16]" in text
    assert "Examples:\n  megalith up\n" in text


def test_the_default_directory_of_train_does_not_change_from_one_help_to_the_next():
    assert "[default: model/<date>-<time>]" in " ".join(invoke("train", "-h").stdout.split())


def test_a_setting_that_is_on_or_off_needs_no_value():
    found = {}

    def run(config):
        found["stay_up"] = config.stay_up
        return 0

    from megalith.controller.config import ControllerConfig
    from megalith.runtime.config.command_line import service_command

    for words, expected in ((["--stay-up"], True), (["--stay-up=false"], False), ([], False)):
        command = service_command("controller", ControllerConfig, run, {})
        command.main([*words, "--model-dir", "m"], standalone_mode=False)
        assert found["stay_up"] is expected


@pytest.mark.parametrize("line", ["version", "--version"])
def test_the_version_is_a_command_and_an_option(line):
    assert invoke(line).stdout.startswith("megalith 0.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_asks_the_command_itself(shell):
    done = invoke("completion", shell)
    assert done.exit_code == 0
    assert "_MEGALITH_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("megalith tr", "train"),
        ("megalith ctl app restart-", "restart-policy"),
        ("megalith up --num-ex", "--num-extra-ps"),
        ("megalith up --row-dtype fl", "float16"),
        ("megalith ctl resume --holder pl", "platform"),
    ],
)
def test_a_shell_completes_commands_options_and_choices(line, proposed):
    environ = {
        "_MEGALITH_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    shown = invoke(env=environ).stdout
    assert f"plain,{proposed}" in shown.splitlines()


HEAVY = ("numba", "pyarrow", "torch", "rich", "prometheus_client", "megalith.ps")


def imported_by(*words):
    """Modules after `megalith <words>`."""
    script = (
        "import sys\\n"
        "from megalith.cli.entry import main\\n"
        "try:\\n    main()\\n"
        "except SystemExit:\\n    pass\\n"
        "print(*sys.modules, file=sys.stderr)\\n"
    ).replace("\\n", "\n")
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=120
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("line", ["--help", "version", "ctl --help"])
def test_help_imports_neither_grpc_nor_tables(line):
    loaded = imported_by(*line.split())
    assert {*HEAVY, "numpy"} & loaded == set()
    assert "megalith.cli.app" in loaded


@pytest.mark.parametrize("command", ["stop", "status", "training-status", "app kill"])
def test_a_ctl_command_imports_only_what_it_shows(tmp_path, command):
    words = ["ctl", "--model-dir", str(tmp_path), "--timeout-s", "0", *command.split()]
    assert set(HEAVY) & imported_by(*words) == set()


def test_a_command_made_elsewhere_has_the_same_style(capsys):
    command = Command("look", params=[click.Option(["--far"], type=click.IntRange(0, 9))])
    with pytest.raises(SystemExit) as exit:
        command.main(["--far", "10"], prog_name="megalith look")
    assert exit.value.code == 2
    assert capsys.readouterr().err == "megalith look: --far=10: not in the range 0<=x<=9\n"
