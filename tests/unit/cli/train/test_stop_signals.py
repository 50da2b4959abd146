import signal

import pytest

from megalith.cli.train.stop_signals import StopSignals


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_second_signal_counts_a_second_later_and_once_it_is_said_what_it_does():
    clock = Clock()
    signals = StopSignals(clock)
    with pytest.raises(KeyboardInterrupt):
        signals.take(signal.SIGINT, None)

    clock.now_s += 0.01
    signals.take(signal.SIGINT, None)  # the same Ctrl-C, to the group
    signals.hold()
    clock.now_s += 5.0
    signals.take(signal.SIGTERM, None)  # nothing has been said yet

    signals.listen()
    with pytest.raises(KeyboardInterrupt):
        signals.take(signal.SIGTERM, None)


def test_a_second_signal_right_after_the_line_is_still_the_first_one():
    clock = Clock()
    signals = StopSignals(clock)
    with pytest.raises(KeyboardInterrupt):
        signals.take(signal.SIGINT, None)

    signals.hold()
    signals.listen()
    clock.now_s += 0.9
    signals.take(signal.SIGINT, None)

    clock.now_s += 0.2
    with pytest.raises(KeyboardInterrupt):
        signals.take(signal.SIGINT, None)
