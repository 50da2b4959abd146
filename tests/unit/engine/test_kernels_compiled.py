import os
import subprocess
import sys


def test_a_switched_off_compiler_is_refused_at_import_with_the_way_out():
    environ = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "import megalith.engine.table.embedding_table"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: megalith.engine.kernels cannot run uncompiled; unset NUMBA_DISABLE_JIT"
    )
