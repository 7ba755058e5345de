"""How does the server write a batch, and read its answer? (crates/process/src/packets/packed.rs, in Python, for tests of the other side.)"""

import json
import struct


def text(document) -> bytes:
    return json.dumps(document).encode()


def pack(message) -> bytes:
    """The command to execute a batch."""
    requests = b"".join(map(pack_request, message["requests"]))
    rest = {key: value for key, value in message.items() if key not in ("do", "requests") and value}
    rest_text = text(rest) if rest else b""
    return struct.pack("<III", 1, len(message["requests"]), len(rest_text)) + requests + rest_text


def pack_request(request) -> bytes:
    inputs, outputs = request["inputs"], request["outputs"]
    layout = struct.pack("<II", len(inputs), len(outputs))
    for name, datatype, shape, *_ in inputs:
        head = struct.pack(f"<III{len(shape)}q", len(name.encode()), len(datatype), len(shape), *shape)
        layout += head + name.encode() + datatype.encode()
    for name, *_, fixed in outputs:
        layout += struct.pack("<II", len(name.encode()), fixed) + name.encode()
    places = [one[-3:] for one in inputs] + [one[1:4] for one in outputs]
    correlation = request["correlation"]
    flags = request["flags"] | (4 if request.get("asks") else 0)
    rare = text({"id": request["id"], "correlation": correlation, "parameters": request["parameters"]})
    numbers = (request["number"], correlation if isinstance(correlation, int) else 0, request["timeout"], request.get("rows", 1))
    head = struct.pack("<QQQIIII", *numbers, flags, len(layout), len(rare))
    return head + layout + b"".join(struct.pack("<QQQ", segment or 0, *others) for segment, *others in places) + rare


def unpack(packet: bytes):
    """The answer to it, as JSON would tell it."""
    kind, count, rest_bytes = struct.unpack_from("<III", packet)
    assert kind == 2
    rest_at = len(packet) - rest_bytes
    at, responses = 12, []
    for _ in range(count):
        kind, length = struct.unpack_from("<II", packet, at)
        at += 8
        if kind == 2:
            responses.append(json.loads(packet[at : at + length]))
            at += length
            continue
        outputs = []
        for _ in range(length):
            name_bytes, datatype_bytes, dims = struct.unpack_from("<III", packet, at)
            at += 12
            shape = list(struct.unpack_from(f"<{dims}q", packet, at))
            at += 8 * dims
            name, datatype = packet[at : at + name_bytes], packet[at + name_bytes : at + name_bytes + datatype_bytes]
            at += name_bytes + datatype_bytes
            segment, offset, byte_size = struct.unpack_from("<QQQ", packet, at)
            at += 24
            outputs.append([name.decode(), datatype.decode(), shape, segment or None, offset, byte_size])
        responses.append({"outputs": outputs, "parameters": {}})
    assert at == rest_at
    return {"responses": responses, **(json.loads(packet[at:]) if rest_bytes else {})}
