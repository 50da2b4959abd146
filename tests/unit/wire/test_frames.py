"""Frames on a real socket pair."""

import socket
import threading

import numpy as np
import pytest

from megalith.wire import frames


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@pytest.mark.parametrize("count", [0, 1, 1022, 1023, 1024, 1025, 5000])
def test_a_frame_of_any_number_of_arrays_arrives_whole(ends, count):
    left, right = ends
    arrays = [
        np.full(1 + i % 7, i, np.int64) for i in range(count)
    ]  # 5000 of them are more than a buffer holds
    whole = b"".join(array.tobytes() for array in arrays)
    sender = threading.Thread(
        target=frames.send, args=(left, b"head", [frames.as_bytes(a) for a in arrays])
    )
    sender.start()
    sizes = frames.receive_sizes(right)
    assert sizes == (4, len(whole))
    received = bytearray(4 + len(whole))
    frames.receive_into(right, memoryview(received))
    sender.join()
    assert received == b"head" + whole


def test_empty_arrays_among_more_than_the_kernel_takes_at_once_are_no_obstacle(ends):
    left, right = ends
    arrays = [np.full(i % 2, i, np.int64) for i in range(3000)]
    frames.send(left, b"", [frames.as_bytes(array) for array in arrays])
    assert frames.receive_sizes(right) == (0, 1500 * 8)
