"""The README's program runs as it stands there."""

import re
import textwrap
from pathlib import Path

from support.servers import Servers

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_program_in_the_readme_trains_and_saves(tmp_path, capsys):
    (program,) = re.findall(r"^    import numpy as np\n.*?\n(?=\n[^ \n])", README, re.DOTALL | re.MULTILINE)
    assert 'model_dir="model"' in program
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        exec(textwrap.dedent(program).replace('"model"', repr(str(tmp_path))), {})
    path = Path(capsys.readouterr().out.strip())
    assert path.parent == tmp_path
    assert (path / "manifest.json").exists()
