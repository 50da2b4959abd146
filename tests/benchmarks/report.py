"""One JSON line per figure: case, value, unit, conditions."""

import json
import os
import platform


def report(case, value, unit, **conditions):
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    print(
        json.dumps(
            {
                "case": case,
                "value": round(value, 4),
                "unit": unit,
                "conditions": machine | conditions,
            }
        ),
        flush=True,
    )
