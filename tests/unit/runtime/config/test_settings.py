from dataclasses import dataclass, field

import pytest

from megalith.errors import InvalidSetting
from megalith.runtime.config import command_line
from megalith.runtime.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Part:
    depth: int = setting("How deep.", 3)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Run a thing."""

    name: str = setting("Who.")
    rate: float = setting("How fast.", 0.5)
    loud: bool = setting("Noise, 100%.", False)
    part: Part = field(default_factory=Part)

    def __post_init__(self):
        if self.rate < 0:
            raise InvalidSetting(f"--rate={self.rate}: below 0")


def run(*argv, of=Config, **environ):
    seen = []
    with pytest.raises(SystemExit) as exit:
        command_line.main("thing", of, lambda config: seen.append(config) or 7, argv, environ)
    if not seen:
        raise exit.value
    assert exit.value.code == 7
    return seen[0]


def test_flags_win_over_environment_over_defaults():
    config = run(
        "--name", "a", "--rate=2", MEGALITH_THING_RATE="1", MEGALITH_THING_DEPTH="9", OTHER="x"
    )
    assert config == Config(name="a", rate=2.0, loud=False, part=Part(depth=9))


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Run one of many things."""

    index: int = setting("Which one.", 0, fallback="RANK_OF_SOMEBODY")


@pytest.mark.parametrize(
    ("argv", "environ", "index"),
    [
        ([], {}, 0),
        ([], {"RANK_OF_SOMEBODY": "3"}, 3),
        (["--index=0"], {"RANK_OF_SOMEBODY": "3"}, 0),
        ([], {"RANK_OF_SOMEBODY": "3", "MEGALITH_THING_INDEX": "0"}, 0),
        ([], {"MEGALITH_THING_INDEX": "0", "RANK_OF_SOMEBODY": "3"}, 0),
    ],
)
def test_somebody_else_s_variable_counts_where_a_setting_is_not_given(argv, environ, index):
    assert run(*argv, of=Ranked, **environ) == Ranked(index=index)


def test_somebody_else_s_variable_that_is_no_number_is_named(capsys):
    with pytest.raises(SystemExit):
        run(of=Ranked, RANK_OF_SOMEBODY="first")
    assert "RANK_OF_SOMEBODY='first': expected a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("Yes", True)])
def test_booleans_are_words(text, value):
    assert run("--name=a", f"--loud={text}").loud is value


BAD = {
    "unknown flag": (["--name=a", "--nmae=b"], {}, "--nmae is no option; did you mean --name?"),
    "unknown variable": (
        ["--name=a"],
        {"MEGALITH_THING_DEPHT": "1"},
        "did you mean MEGALITH_THING_DEPTH?",
    ),
    "far off variable": (
        ["--name=a"],
        {"MEGALITH_THING_ZZZ": "1"},
        "known are MEGALITH_THING_DEPTH",
    ),
    "not a number": (["--name=a", "--depth=deep"], {}, "--depth='deep': expected a whole number"),
    "not a truth": (
        ["--name=a"],
        {"MEGALITH_THING_LOUD": "maybe"},
        "MEGALITH_THING_LOUD='maybe': expected yes or no",
    ),
    "missing": ([], {}, "--name is not given"),
    "out of range": (["--name=a", "--rate=-1"], {}, "--rate=-1.0: below 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_setting_is_one_line_and_exit_status_2(name, capsys):
    argv, environ, message = BAD[name]
    with pytest.raises(SystemExit) as exit:
        run(*argv, **environ)
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("megalith thing: ")
    assert message in line


def test_help_names_default_and_variable(capsys):
    with pytest.raises(SystemExit) as exit:
        run("--help")
    assert exit.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "How deep. [default: 3]" in text
    assert "Who. [required]" in text
    assert "MEGALITH_THING_NAME for --name" in text


def test_flags_can_be_made_from_values():
    assert run(*command_line.to_flags({"name": "a b", "loud": True})) == Config(
        name="a b", loud=True
    )
