"""A coordinator whose two ps answer orders to save, without processes."""

from pathlib import Path

from megalith.checkpoint.layout.manifest import ShardFile
from megalith.controller.saving.whole_model import ShardSaved


class FakeCoordinator:
    """Two ps with sessions 1 and 2; `on_order` decides what they answer."""

    global_step = 12
    lacks_rows = False

    def __init__(self):
        self.alive = {1, 2}
        self.on_order = lambda order: None
        self.orders = []

    def order_save(self, order):
        self.orders.append(order)
        self.on_order(order)
        return [1, 2]

    def is_alive(self, session):
        return session in self.alive

    def moving_workers(self):
        return ()

    def wait_for_returning_ps(self):
        pass

    def ask_for_reports(self, timeout_s):
        return []

    def check_current(self):
        """It is never replaced, unless a test says so."""

    def cursors(self):
        return (b"here", b"")

    def cursors_step(self):
        return self.global_step

    def index_of(self, session):
        return session - 1


CONTENT = b"ten bytes."


def file(name, rows=3):
    return ShardFile(name, "table", "t", rows, len(CONTENT), "00")


def everything_in(directory):
    """Names and contents of all files, and when each was last changed."""
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def answer_both(saver, order):
    for session in (1, 2):
        name = f"t-{session}-{order.save_id}"
        (Path(order.directory) / name).write_bytes(CONTENT)
        saver.answer(session, ShardSaved(order.save_id, [file(name)]))
