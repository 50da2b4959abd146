import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_no_file_holds_the_marks_of_an_unfinished_merge():
    found = subprocess.run(
        ["grep", "-rnE", "^(<{7}|>{7}) ", "--exclude-dir=.venv", "--exclude-dir=.git", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.stdout == ""
