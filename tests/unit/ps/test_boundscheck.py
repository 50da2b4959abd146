"""The kernel tests once more, compiled with bounds checks: an index out of range raises instead of reading garbage."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITE = ("test_index_kernels.py", "test_table_goldens.py", "test_table_keeping.py", "test_fused.py")


@pytest.mark.skipif("NUMBA_BOUNDSCHECK" in os.environ, reason="this is that run")
@pytest.mark.timeout(900)
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    # A cache of its own: on a shared one the unchecked build is loaded and nothing is checked.
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=600"]
    done = subprocess.run(
        [*command, *(str(HERE / name) for name in SUITE)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
