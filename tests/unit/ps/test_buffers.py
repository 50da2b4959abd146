import numpy as np

from megalith.runtime.lane.connection import BufferPool

MB = 1 << 20


def test_a_buffer_that_was_given_back_serves_the_next_request_of_its_size():
    pool = BufferPool()
    buffer = pool.take(3 * MB)
    assert buffer.nbytes >= 3 * MB
    pool.give_back(buffer)
    assert pool.take(2 * MB) is buffer
    assert pool.kept_bytes == 0


def test_no_more_is_kept_than_the_limit_however_many_give_back():
    pool = BufferPool(kept_bytes=8 * MB)
    for buffer in [pool.take(4 * MB) for _ in range(5)]:
        pool.give_back(buffer)
    assert pool.kept_bytes == 8 * MB
    pool.give_back(np.empty(256 * MB, np.uint8))
    assert pool.kept_bytes == 8 * MB
