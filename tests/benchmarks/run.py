"""`make bench`: every benchmark in turn, each in a process of its own.

Or those named on the command line.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = ("startup.py", "data_plane.py", "stop.py", "controller.py")


def main():
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent)}  # for tests/support
    for name in sys.argv[1:] or BENCHMARKS:
        subprocess.run([sys.executable, str(HERE / name)], check=True, env=environ)


if __name__ == "__main__":
    main()
