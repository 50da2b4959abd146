"""A rank of synchronous training: trains a task of `sync_tasks` and prints what came of it.

python -m support.sync_program TASK OPTIONS SETTINGS, the last two as JSON
"""

import json
import sys

from megalith.sync import sync_train
from support import sync_tasks


def main(name, options, settings):
    task = getattr(sync_tasks, name)(**json.loads(options))
    run = sync_train(task, **json.loads(settings))
    said = {
        "step": run.step,
        "losses": run.losses,
        "figures": run.figures,
        "rows": run.model.num_rows,
        "checkpoint": str(run.checkpoint),
    }
    print(f"\nresult {json.dumps(said)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
