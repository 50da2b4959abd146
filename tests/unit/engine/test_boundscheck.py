"""The kernel tests once more, compiled with bounds checks: an index out of range raises instead of
reading garbage."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[1]
SUITE = (
    "engine/test_index_kernels.py",
    "engine/test_row_kernels.py",
    "engine/test_loading_new_rows.py",
    "engine/test_table_properties.py",
    "engine/test_touched.py::test_the_kernel_does_what_its_twin_does",
    "engine/test_admission_kernels.py",
    "engine/test_initializers.py",
    "engine/test_compressors.py",
    "engine/test_retrievers.py",
    "engine/test_optimizer_sgd_adagrad.py",
    "engine/test_optimizer_kernels.py",
    "engine/test_optimizer_rounding.py",
    "engine/test_dense_optimizers.py",
    "client/test_pooling_kernels.py",
    "client/test_partition.py",
    "client/test_hashing.py",
)


@pytest.mark.long
@pytest.mark.skipif("NUMBA_BOUNDSCHECK" in os.environ, reason="this is that run")
@pytest.mark.timeout(1800)
def test_all_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    """The plugin sees to it that no kernel is left out."""
    # A cache of its own: on a shared one the unchecked build is loaded and nothing is checked.
    folders = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(UNIT.parent)}
    environment = {**os.environ, **folders, "NUMBA_BOUNDSCHECK": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "support.kernel_census",
    ]
    options = ["-o", "timeout=600", "-k", "not vectorised and not numba"]
    done = subprocess.run(
        [*command, *options, *(str(UNIT / name) for name in SUITE)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
