"""How does a test send a request by hand, in parts?"""

import json
import socket

from clients import TIMEOUT_S

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
LARGE = 64 << 20


def head(length: int, size: int) -> tuple[bytes, bytes]:
    document = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [size // 4], "parameters": {"binary_data_size": size}}]}
    ).encode()
    lines = (
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(document), len(document) + length)
    )
    return lines, document


def connected(url: str) -> socket.socket:
    host, _, port = url.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
