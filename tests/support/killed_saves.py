"""A save whose process dies before the n-th line of it, for every n: `python killed_saves.py CASE
DIRECTORY`.

Prints one JSON line for each death that left something else than the one before: what the next
start finds, and whether a save after that works. It is a program of its own because it forks, which
a process with threads must not.
"""

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

from megalith.checkpoint.directory import catalog, exempt_list, listing, retention
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.controller.saving import leftovers, saves, shard_writing
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.start_point import StartPoint
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import MegalithError
from megalith.runtime import files

CONTENT = b"ten bytes."
_TRACED = {
    module.__file__
    for module in (
        saves,
        shard_writing,
        leftovers,
        catalog,
        listing,
        exempt_list,
        retention,
        manifest,
        files,
    )
}


class OnePs:
    """Writes one file and answers at once."""

    global_step = 12
    lacks_rows = False

    def order_save(self, order):
        name = f"t-{order.save_id}"
        (Path(order.directory) / name).write_bytes(CONTENT)
        self.saver.answer(
            1, ShardSaved(order.save_id, [ShardFile(name, "table", "t", 3, len(CONTENT), "00")])
        )
        return [1]

    def is_alive(self, session):
        return True

    def check_current(self):
        pass

    def cursors(self):
        return (b"here", b"")

    def cursors_step(self):
        return self.global_step

    def wait_for_returning_ps(self):
        pass

    def ask_for_reports(self, timeout_s):
        return []

    def moving_workers(self):
        return (0, 1)

    def index_of(self, session):
        return session - 1


def save(model_dir):
    cluster = OnePs()
    cluster.saver = Saver(cluster, model_dir, timeout_s=60.0, appear_s=0.0)
    return cluster.saver.save().path.name


def die_before_line(number):
    left = number

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in _TRACED:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os._exit(9)
        return trace

    sys.settrace(trace)


def no_space(*arguments):
    raise OSError(28, "No space left on device")


def killed_at(number, case, model_dir):
    """Whether the save died; otherwise it had less lines than that."""
    child = os.fork()
    if child == 0:
        if case == "cannot be listed":
            catalog.record_latest = no_space
        die_before_line(number)
        with contextlib.suppress(MegalithError):
            save(model_dir)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def start(model_dir):
    """What a controller does before it serves."""
    catalog.complete_list(model_dir)
    chain = StartPoint(model_dir).find()
    if chain is None:
        return ""
    path = chain.directory
    assert all((path / file.name).read_bytes() == CONTENT for file in manifest.read(path).files)
    return path.name


def left_behind(model_dir):
    """Names, without the random part, and sizes."""
    return sorted(
        (
            re.sub(r"-[0-9a-f]{8}\b", "", str(path.relative_to(model_dir))),
            path.is_file() and path.stat().st_size,
        )
        for path in model_dir.rglob("*")
    )


def main(case, root):
    number = 0
    before = None
    is_killed = True
    while is_killed:
        model_dir = root / str(number)
        model_dir.mkdir()
        if case == "second":
            save(model_dir)
        is_killed = killed_at(number, case, model_dir)
        number += 1
        left = left_behind(model_dir)
        if left == before and is_killed:
            shutil.rmtree(model_dir)
            continue
        before = left
        complete = sorted(path.parent.name for path in model_dir.glob("model.ckpt-*/manifest.json"))
        found = {"killed": is_killed, "complete": complete}
        try:
            found["started"] = start(model_dir)
            found["again"] = start(model_dir)
            found["saved"] = save(model_dir)
            found["newest"] = start(model_dir)
        except MegalithError as error:
            found["error"] = str(error)
        print(json.dumps(found))
        shutil.rmtree(model_dir)


if __name__ == "__main__":
    os.fsync = lambda descriptor: None  # a process that dies takes nothing with it that was written
    main(sys.argv[1], Path(sys.argv[2]))
