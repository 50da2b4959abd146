import subprocess
import sys

import pytest

_STEPS = """
import resource
import sys
import numpy as np
from megalith.runtime.process.freed_memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def step():
    arrays = [np.zeros((4096, 416), np.float32) + 1.0 for _ in range(4)]
    return sum(array[0, 0] for array in arrays)

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(3):
    step()

before = num_faults()
for _ in range(20):
    step()

print(num_faults() - before)
"""


def page_faults(way):
    """Of 20 steps, each of which makes and frees 27 MB."""
    command = [sys.executable, "-c", _STEPS, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
def test_steps_use_the_memory_of_the_steps_before_without_a_page_fault():
    given_back = page_faults("given back")
    kept = page_faults("kept")

    assert given_back > 1000, "the allocator keeps memory by itself: nothing is to be done"
    assert kept < 200
