"""How does a client make the server hold much, by answers that it does not read, half messages and open calls?"""

import concurrent.futures
import contextlib
import json
import socket

from clients import pb
from frames import END_HEADERS, HEADERS, call_head, frame, literal, open_connection, reference
from packets import TIMEOUT_S, Raw, welcomed

MODEL = "identity_fp32"


def head(byte_size: int) -> bytes:
    return json.dumps({
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [byte_size // 4], "parameters": {"binary_data_size": byte_size}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip


def http_post(server, byte_size: int, sent: int | None = None) -> socket.socket:
    """A client with a small buffer that sends an inference, or so many bytes of it, and does not read."""
    text = head(byte_size)
    fields = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + byte_size}"
    return post_unread(server, "infer", fields, text + bytes(byte_size if sent is None else sent))


def http_generate(server, values: int) -> socket.socket:
    """A client that asks for text of so many numbers, and does not read it."""
    body = b'{"INPUT0":[' + b",".join([b"0"] * values) + b"]}"
    return post_unread(server, "generate", f"Content-Length: {len(body)}", body)


def get_unread(server, path: str) -> socket.socket:
    """A client with a small buffer that asks for something, and does not read it."""
    return send_unread(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def post_unread(server, call: str, fields: str, body: bytes) -> socket.socket:
    return send_unread(server, f"POST /v2/models/{MODEL}/{call} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n".encode(), body)


def send_unread(server, head: bytes, body: bytes = b"") -> socket.socket:
    host, port = server.http.split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    made.settimeout(8)
    made.connect((host, int(port)))
    made.sendall(head)
    with contextlib.suppress(OSError):
        made.sendall(body)
    return made


def infer_message(byte_size: int) -> bytes:
    request = pb.ModelInferRequest(model_name=MODEL, raw_input_contents=[bytes(byte_size)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[byte_size // 4])
    return request.SerializeToString()


def session_infer(server, model: str, count: int) -> Raw:
    """A session that asks so many times for 100 KiB, as far as it is read, and does not read."""
    made = welcomed(server.session)
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[bytes(100 << 10)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[25 << 10])
    content = request.SerializeToString()
    made.socket.settimeout(1)
    with contextlib.suppress(OSError):
        for number in range(count):
            made.call(number + 2, infer={"request": content})
    made.socket.settimeout(TIMEOUT_S)
    return made


def many(count: int, make) -> contextlib.ExitStack:
    """So many connections, made side by side; those that the server does not want are none."""
    held = contextlib.ExitStack()

    def one(_) -> None:
        with contextlib.suppress(OSError):
            held.enter_context(contextlib.closing(make()))

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))
    return held


def header_bomb(server, streams: int) -> socket.socket:
    """Calls whose heads are a few hundred bytes, each of which stands for a field of the table."""
    connection = open_connection(server.grpc)
    connection.sendall(frame(HEADERS, END_HEADERS, 1, call_head("ModelStreamInfer", literal("a", "b", indexed=True))))
    for number in range(1, streams):
        block = call_head("ModelStreamInfer", reference(62) * 450)
        connection.sendall(frame(HEADERS, END_HEADERS, 2 * number + 1, block))
    return connection
