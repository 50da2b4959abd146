import click
import pytest

from megalith.cli.runs.job_file import arguments_of


def written(folder, text):
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


def test_a_file_is_the_command_line_that_says_the_same(tmp_path):
    path = written(
        tmp_path,
        """
        task = "ctr"
        data = "clicks/*.parquet"
        features = ["user", "item"]
        num_workers = 4
        row_rate = 0.1
        expire_on_save = true
        """,
    )
    assert arguments_of(path) == [
        "ctr",
        "--data=clicks/*.parquet",
        "--features=user,item",
        "--num-workers=4",
        "--row-rate=0.1",
        "--expire-on-save=true",
    ]


def test_a_table_of_the_file_has_keywords_of_the_task(tmp_path):
    path = written(tmp_path, 'task = "my_task.py:MyTask"\n[set.task]\ndays = 7\npath = "x y"\n')
    assert arguments_of(path) == ["my_task.py:MyTask", "--set=task.days=7", '--set=task.path="x y"']


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("data = 'x'", "it names no task"),
        ("task = ", "is no TOML"),
        ("task = 'ctr'\nset = 3", "set is a table of services"),
        ("task = 'ctr'\n[data]\nx = 1", "data is dict, expected text, a number or a list"),
    ],
)
def test_a_file_that_is_no_job_is_refused(tmp_path, text, complaint):
    with pytest.raises(click.UsageError, match=complaint):
        arguments_of(written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(click.UsageError, match="No such file"):
        arguments_of(str(tmp_path / "no.toml"))
