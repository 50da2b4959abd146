import socket

from megalith.runtime.rpc.binding import cannot_listen


def test_a_host_of_another_machine_is_blamed_and_not_the_port():
    error = str(cannot_listen("192.0.2.1", "port", 0))
    assert error.startswith("--host=192.0.2.1: cannot listen on 192.0.2.1:0 (")
    assert error.endswith("give an address of this machine, or 0.0.0.0 for all of them")


def test_a_port_that_is_in_use_is_blamed():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(cannot_listen("127.0.0.1", "lane_port", port)) == (
            f"--lane-port={port}: cannot listen on 127.0.0.1:{port} "
            "(Address already in use); "
            "choose another port, or 0 for any free one"
        )
