from megalith.controller.members.directives import SessionEnd, ShutdownOrder
from megalith.controller.members.sessions import Mailbox


def test_a_reader_gets_directives_in_order():
    mailbox = Mailbox(on_overflow=lambda: None)
    orders = [ShutdownOrder(str(number)) for number in range(3)]
    for order in orders:
        mailbox.put(order)
    assert [mailbox.get() for _ in orders] == orders


def test_one_that_is_not_read_overflows_once_and_never_blocks_its_sender():
    overflows = []
    mailbox = Mailbox(on_overflow=lambda: overflows.append(1), limit=4)
    for number in range(1000):
        mailbox.put(ShutdownOrder(str(number)))
    assert overflows == [1]
    mailbox.close()
    kept = []
    while not isinstance(directive := mailbox.get(), SessionEnd):
        kept.append(directive.reason)
    assert kept == ["0", "1", "2", "3"]
