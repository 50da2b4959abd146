import threading

from megalith.runtime.lifecycle import ExitRequest


def test_the_first_request_decides():
    request = ExitRequest()
    threads = [threading.Thread(target=request.request, args=(status, f"reason {status}")) for status in range(8)]
    request.request(3, "first")
    for thread in threads:
        thread.start()
    request.wait()
    for thread in threads:
        thread.join()
    assert (request.status, request.reason) == (3, "first")
