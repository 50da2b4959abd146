"""A TCP proxy that spoils connections: knows bytes, not what they mean, so it fits any
transport."""

import random
import socket
import struct
import threading

CHUNK = 1 << 15
_RESET = struct.pack("ii", 1, 0)  # close with RST: the peer notices at once


class FaultyProxy:
    """Listens where clients are told that a server is, and forwards to where it is.

    Of the chunks of a connection some are late; at some, of either direction, it is cut: before the
    chunk, or after half of it. What a client had sent on a cut connection is then often sent again,
    on a new one whose replies nobody reads. `_lock` guards the counts, the generator and the
    sockets.
    """

    def __init__(self, listen, target, seed, *, cut=0.03, delay=0.1, delay_s=0.01, repeat=0.7):
        self._target = target
        self._cut = cut
        self._delay = delay
        self._delay_s = delay_s
        self._repeated = repeat
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._sockets, self._threads, self._is_stopping = set(), [], False
        self._is_open = threading.Event()
        self._is_open.set()
        self.counts = {
            "connections": 0,
            "late": 0,
            "cut requests": 0,
            "cut replies": 0,
            "repeated": 0,
        }
        self._listener = socket.create_server(listen)
        self._start(self._accept)

    def __enter__(self):
        return self

    @property
    def address(self):
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def swallow(self):
        """Deliver nothing from now on, on old connections and new ones, and end none of them."""
        self._is_open.clear()

    def deliver(self):
        """Go on with what was held back, as TCP does once a network is back."""
        self._is_open.set()

    def __exit__(self, *error):
        self._is_open.set()
        with self._lock:
            self._is_stopping = True
            sockets = list(self._sockets)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in sockets:
            _end(sock)
        for thread in self._threads:
            thread.join(30)

    def _start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, name="faulty-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _count(self, what):
        with self._lock:
            self.counts[what] += 1

    def _chance(self, share):
        with self._lock:
            return self._random.random() < share

    def _track(self, sock):
        with self._lock:
            if self._is_stopping:
                sock.close()
                raise OSError("the proxy is closed")
            self._sockets.add(sock)
        return sock

    def _accept(self):
        while True:
            try:
                client = self._track(self._listener.accept()[0])
            except OSError:
                return
            self._count("connections")
            try:
                server = self._track(socket.create_connection(self._target, 5))
            except OSError:
                _end(client)
                continue
            server.settimeout(None)
            sent = []
            self._start(self._pump, client, server, "requests", sent)
            self._start(self._pump, server, client, "replies", sent)

    def _pump(self, source, sink, direction, sent):
        """One direction of a connection until it ends, or is ended."""
        try:
            while chunk := source.recv(CHUNK):
                if direction == "requests":
                    sent.append(chunk)
                if self._chance(self._delay):
                    self._count("late")
                    threading.Event().wait(self._delay_s)
                if self._chance(self._cut):
                    sink.sendall(chunk[: len(chunk) // 2] if self._chance(0.5) else b"")
                    self._count(f"cut {direction}")
                    break
                self._is_open.wait()
                sink.sendall(chunk)
        except OSError:
            pass  # the other direction was cut, or a peer has gone
        was_cut = source.fileno() >= 0
        _end(source)
        _end(sink)
        if was_cut and direction == "replies" and self._chance(self._repeated):
            self._repeat(b"".join(sent))

    def _repeat(self, requests):
        """Send everything once more; a server must not care."""
        again = socket.socket()
        try:
            self._track(again).settimeout(0.5)
            again.connect(self._target)
            again.sendall(requests)
            self._count("repeated")
            while again.recv(CHUNK):
                pass
        except OSError:
            pass  # it has said all it had to say
        finally:
            _end(again)


def _end(sock):
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # gone already
    sock.close()


class Link:
    """The only way to a server, which can be cut and mended; it spoils nothing else.

    While it is cut, connections end at once and new ones are refused. While it swallows, nothing
    comes through and nobody hears of an end: as if the other machine had vanished.
    """

    def __init__(self, port, target_port):
        self._listen = ("127.0.0.1", port)
        self._target = ("127.0.0.1", target_port)
        self.address = f"127.0.0.1:{port}"
        self._proxy = None
        self.mend()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.cut()

    def cut(self):
        if self._proxy is not None:
            self._proxy.__exit__()
            self._proxy = None

    def swallow(self):
        self._proxy.swallow()

    def mend(self):
        if self._proxy is None:
            self._proxy = FaultyProxy(self._listen, self._target, 1, cut=0, delay=0, repeat=0)
        else:
            self._proxy.deliver()
