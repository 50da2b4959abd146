"""The README's programs run as they stand there."""

import re
import textwrap
from pathlib import Path

import numpy as np

import megalith.client as mg
from support.servers import Servers

README = (Path(__file__).parents[2] / "README.md").read_text()


def program(first_line):
    (found,) = re.findall(
        rf"^    {re.escape(first_line)}.*?\n(?=\n[^ \n])", README, re.DOTALL | re.MULTILINE
    )
    return textwrap.dedent(found)


def test_the_programs_in_the_readme_train_and_save(tmp_path, capsys):
    step = program("import numpy as np")
    lines = [line for line in step.splitlines() if line and not line.startswith("import")]
    assert len(lines) == 8, "a training step takes eight lines"
    assert 'model_dir="model"' in step
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        names = {}
        for _ in range(2):
            exec(step.replace('"model"', repr(str(tmp_path))), names)
        after = servers.connect().pull(
            {names["model"].table_by_feature["user"]: names["user"].fids([7, 42])}
        )
        (rows,) = after.rows.values()
        assert rows[0, 0] > 0 > rows[1, 0]  # the biases follow the labels 1 and 0
        assert np.abs(rows[:, 1:]).max() > 0
        exec(program("cluster.create_tables"), {"cluster": servers.connect(), "mg": mg, "np": np})
    path = Path(capsys.readouterr().out.strip())
    assert path.parent == tmp_path
    assert (path / "manifest.json").exists()
