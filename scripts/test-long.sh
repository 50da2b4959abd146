#!/bin/sh
# The long tests: those marked `long`, and those whose length is set by a variable, at length. Runs all, then fails if
# one of them failed. Usage: scripts/test-long.sh path/to/python
set -u
python=${1:?usage: scripts/test-long.sh path/to/python}
replica_rounds="${MEGALITH_FAULT_ROUNDS:-50}"
export MEGALITH_STRESS_S="${MEGALITH_STRESS_S:-60}"
export MEGALITH_FAULT_ROUNDS="${MEGALITH_FAULT_ROUNDS:-20}"
export MEGALITH_TEST_SOAK_S="${MEGALITH_TEST_SOAK_S:-60}"
export MEGALITH_TEST_STOP_CYCLES="${MEGALITH_TEST_STOP_CYCLES:-200}"
status=0

"$python" -m pytest -m long --timeout 3600 --durations=20 || status=1
"$python" -m pytest -n 2 --dist loadfile --max-worker-restart 0 --timeout 3600 --durations=20 \
    tests/unit/engine/test_table_stress.py \
    tests/fault/test_rounds.py \
    tests/fault/test_exactly_once.py \
    tests/integration/test_control.py \
    tests/integration/test_controller.py || status=1
MEGALITH_FAULT_ROUNDS="$replica_rounds" \
    "$python" -m pytest --timeout 3600 tests/fault/test_replicas.py || status=1
exit $status
