"""A serving process of Monolith's kind: takes Predict calls, and says what it holds.

`python tests/support/serving_side.py PORT` prints its port. It reads the bytes of a call by itself,
with the public tags of TensorFlow Serving, and knows no message of Megalith.
"""

import io
import os
import signal
import struct
import sys
import threading
from concurrent import futures

import grpc
import numpy as np

PREDICT = "/tensorflow.serving.PredictionService/Predict"
ASK = "/test/Ask"
DTYPES = {1: "<f4", 9: "<i8"}


def fields(message):
    """(tag, value) of each field: an int, or bytes."""
    position = 0
    while position < len(message):
        key, position = varint(message, position)
        tag, kind = key >> 3, key & 7
        if kind == 0:
            value, position = varint(message, position)
        elif kind == 2:
            length, position = varint(message, position)
            value = message[position : position + length]
            position += length
        elif kind == 5:
            value = struct.unpack_from("<f", message, position)[0]
            position += 4
        else:
            raise ValueError(f"wire type {kind}")
        yield tag, value


def varint(message, position):
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def tensor(message):
    parts = dict(fields(message))
    shape = [dict(fields(dim)).get(1, 0) for tag, dim in fields(parts.get(2, b"")) if tag == 2]
    return np.frombuffer(parts.get(4, b""), DTYPES[parts[1]]).reshape(shape)


def decode(message):
    """(model name, signature, arrays by input) of a PredictRequest."""
    spec, inputs = {}, {}
    for tag, value in fields(message):
        if tag == 1:
            spec = dict(fields(value))
        elif tag == 2:
            entry = dict(fields(value))
            inputs[entry[1].decode()] = tensor(entry[2])
    return spec[1].decode(), spec[3].decode(), inputs


class ServingSide:
    """Rows by id, by `model/table`. `refuse` names a status that every call gets."""

    def __init__(self):
        self.lock = threading.Lock()
        self.rows, self.calls, self.sizes = {}, [], []
        self.refuse, self.die_after = "", 0

    def predict(self, message, context):
        with self.lock:
            if self.refuse:
                context.abort(getattr(grpc.StatusCode, self.refuse), "refused by the test")
            model, signature, inputs = decode(message)
            self.sizes.append(len(message))
            self.calls.append(f"{model} {signature} {' '.join(sorted(inputs))}")
            if self.die_after and len(self.calls) > self.die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            for name, ids in inputs.items():
                if name.endswith("_id"):
                    table = name.removesuffix("_id")
                    values = inputs[f"{table}_value"]
                    assert values.shape[0] == ids.size
                    held = self.rows.setdefault(f"{model}/{table}", {})
                    held.update(zip(ids.tolist(), values, strict=True))
        return b""

    def ask(self, message, context):
        command, _, argument = message.decode().partition(" ")
        with self.lock:
            if command == "refuse":
                self.refuse = argument
            if command == "die_after":
                self.die_after = len(self.calls) + int(argument)
            arrays = {"calls": np.array(self.calls, dtype=str), "sizes": np.array(self.sizes)}
            for name, held in self.rows.items():
                key = name.replace("/", "\x1f")
                arrays[f"id {key}"] = np.array(sorted(held), np.int64)
                arrays[f"value {key}"] = np.array([held[each] for each in sorted(held)])
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()


def serve(port):
    side = ServingSide()
    methods = {PREDICT: side.predict, ASK: side.ask}

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            call = methods.get(details.method)
            return call and grpc.unary_unary_rpc_method_handler(call)

    options = [("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
    server.add_generic_rpc_handlers((Handler(),))
    print(f"port={server.add_insecure_port(f'127.0.0.1:{port}')}", flush=True)
    server.start()
    server.wait_for_termination()


class Held:
    """What a serving process holds, as it says."""

    def __init__(self, address, command="dump"):
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(address, options=options) as channel:
            answer = channel.unary_unary(ASK)(command.encode(), timeout=30, wait_for_ready=True)
        arrays = np.load(io.BytesIO(answer))
        self.calls, self.sizes = arrays["calls"].tolist(), arrays["sizes"].tolist()
        self.rows = {}
        for name in arrays.files:
            if name.startswith("id "):
                key = name.removeprefix("id ")
                self.rows[key.replace("\x1f", "/")] = arrays[name], arrays[f"value {key}"]

    def table(self, name, dim=4):
        """(ids in rising order, rows)."""
        return self.rows.get(name, (np.empty(0, np.int64), np.empty((0, dim), np.float32)))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
