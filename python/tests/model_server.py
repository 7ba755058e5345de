"""What does the server's side of the wire to a Python model look like? (docs/python-process.md, in Python, for tests of the other side.)"""

import array
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import packed_batches
import pytest

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "nerite" / "model"
# The child gets the modules under a name that the installed package has not.
PACKAGE = "nerite_model"
PACKET_BYTES_MAX = 65_536
# Another one of these can be tried: any CPython from 3.9 on that has numpy.
INTERPRETER = os.environ.get("MODEL_PYTHON", sys.executable)
ANSWER_S = 60.0
# The longest wait for something that another thread does.
PATIENCE_S = 60


def modules() -> dict[str, str]:
    """The sources the server sends, by name."""
    files = {path.stem: path.read_text() for path in SOURCES.glob("*.py") if path.stem != "launch"}
    return {PACKAGE if stem == "__init__" else f"{PACKAGE}.{stem}": text for stem, text in files.items()}


class Memory:
    """A memory file that is shared with the child as one segment."""

    def __init__(self, segment: int, byte_size: int, is_region: bool = False, file_offset: int = 0) -> None:
        self.segment, self.byte_size, self.is_region, self.file_offset = segment, byte_size, is_region, file_offset
        self.descriptor = os.memfd_create("test")
        os.truncate(self.descriptor, file_offset + byte_size)
        self.used = 0

    def entry(self):
        return [self.segment, self.byte_size, self.file_offset, self.is_region]

    def put(self, data: bytes, at: int | None = None) -> int:
        """Writes the bytes behind what was put before; returns their offset."""
        at = self.used if at is None else at
        os.pwrite(self.descriptor, data, self.file_offset + at)
        self.used = max(self.used, -(-(at + len(data)) // 64) * 64)
        return at

    def get(self, at: int, count: int) -> bytes:
        return os.pread(self.descriptor, count, self.file_offset + at)


class ModelServer:
    """A child that runs the model in `source`, and the three channels to it."""

    def __init__(self, folder, source, python=INTERPRETER, guard=None, file="model.py", name="m", environment=None):
        self.version_dir = folder / name / "1"
        self.version_dir.mkdir(parents=True)
        (self.version_dir / file).write_text(source)
        self.model = {
            "name": name, "version": "1", "file": file, "version_dir": str(self.version_dir),
            "model_dir": str(folder / name), "instance": f"{name}_0", "title": f"nerite: model {name} instance 0",
        }  # fmt: skip
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.side, side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.calls, calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (self.channel, self.side, self.calls):
            one.settimeout(ANSWER_S)
        self.output = open(folder / "output.txt", "w+b", buffering=0)
        self.process = subprocess.Popen(
            [python, "-u", "-c", (SOURCES / "launch.py").read_text()],
            stdin=theirs.fileno(), stdout=self.output, stderr=self.output, start_new_session=True, env=environment,
        )  # fmt: skip
        theirs.close()
        beside = [side.fileno(), calls.fileno()] + ([guard] if guard is not None else [])
        self.send({"modules": modules(), "main": f"{PACKAGE}.stub"}, beside)
        side.close()
        calls.close()
        self.number = 0
        self.segments = {}
        self.pending = []
        # What the server does when the child needs a place for an output.
        self.on_need = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.side.close()
        self.calls.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()

    def printed(self) -> str:
        return os.pread(self.output.fileno(), 1 << 20, 0).decode()

    def send(self, message, descriptors=()):
        text = packed_batches.pack(message) if message.get("do") == "execute" else json.dumps(message).encode()
        descriptors = list(descriptors)
        with contextlib.ExitStack() as files:
            if len(text) > PACKET_BYTES_MAX:
                file = files.enter_context(open(os.memfd_create("long"), "wb"))
                file.write(text)
                file.flush()
                descriptors.insert(0, file.fileno())
                text = json.dumps({"long": len(text)}).encode()
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            self.channel.sendmsg([text], beside)

    def receive(self, end=None):
        try:
            text, beside, _, _ = (end or self.channel).recvmsg(1 << 17, socket.CMSG_SPACE(256))
        except ConnectionResetError:
            text = b""
        if not text:
            raise EOFError(f"the child is gone: {self.process.wait(PATIENCE_S)}\n{self.printed()}")
        assert len(text) <= PACKET_BYTES_MAX
        message = read(text)
        if "long" in message:
            (descriptor,) = array.array("i", beside[0][2])
            with open(descriptor, "rb") as file:
                message = read(file.read(message["long"]))
        return message

    def exchange(self, message, descriptors=()):
        self.send(message, descriptors)
        return self.receive()

    def initialize(self, config=None, **fields):
        args = {
            "model_config": json.dumps(config or {}), "model_instance_kind": "CPU", "model_instance_device_id": "0",
            "model_instance_name": self.model["instance"], "model_repository": self.model["model_dir"],
            "model_version": "1", "model_name": self.model["name"],
        }  # fmt: skip
        return self.exchange({"do": "initialize", "args": args, "model": self.model, "decoupled": False, **fields})

    def memory(self, byte_size, **fields) -> Memory:
        """A new segment; it is mapped with the next batch."""
        made = Memory(len(self.segments) + 1, byte_size, **fields)
        self.segments[made.segment] = made
        self.pending.append(made)
        return made

    def mapping(self):
        """What is to be mapped with the next message, and the descriptors."""
        new, self.pending = self.pending, []
        return [one.entry() for one in new], [one.descriptor for one in new]

    def request(self, inputs=(), outputs=(), **fields):
        self.number += 1
        plain = {"number": self.number, "id": "", "correlation": 0, "flags": 0, "timeout": 0, "parameters": {}}
        return {**plain, "inputs": list(inputs), "outputs": list(outputs), **fields}

    def execute(self, *requests, **fields):
        """Sends a batch and answers what the child needs until it is done."""
        mapping, descriptors = self.mapping()
        self.send({"do": "execute", "requests": list(requests), "map": mapping, "forget": [], **fields}, descriptors)
        while True:
            message = self.receive()
            if "need" not in message:
                return message
            answer = self.on_need(*message["need"])
            mapping, descriptors = self.mapping()
            self.send({**answer, "map": mapping}, descriptors)


def read(packet: bytes):
    """A packet of the child's: JSON, or packed."""
    return json.loads(packet) if packet.startswith(b"{") else packed_batches.unpack(packet)


def serialised(*elements: bytes) -> bytes:
    """A BYTES tensor as it travels."""
    return b"".join(len(one).to_bytes(4, "little") + one for one in elements)


def given(memory: Memory, name: str, data, datatype="FP32"):
    """An input that lies in the segment from now on."""
    raw = data if isinstance(data, bytes) else data.tobytes()
    shape = [raw.count(b"")] if isinstance(data, bytes) else list(data.shape)
    return [name, datatype, shape, memory.segment, memory.put(raw), len(raw)]


def placed(server: ModelServer, output, dtype=np.float32):
    """The array of an output that was answered."""
    _, _, shape, segment, offset, byte_size = output
    return np.frombuffer(server.segments[segment].get(offset, byte_size), dtype).reshape(shape)


IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())])
            for request in requests
        ]
"""

# A model that runs what its request says, in the parameter "code": `ret` is what execute returns, else `out` is answered as text.
OBEDIENT = """
import os, time, threading
import numpy as np
import triton_python_backend_utils as pb_utils

def text(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(value)], dtype=object))])

class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        import json
        known = {"pb_utils": pb_utils, "np": np, "requests": requests, "request": requests[0], "self": self, "text": text}
        known.update(os=os, time=time, threading=threading)
        exec(compile(json.loads(requests[0].parameters())["code"], "code", "exec"), known)
        return known["ret"] if "ret" in known else [text(known.get("out")) for _ in requests]
"""


def obey(server: ModelServer, code: str, inputs=(), outputs=None, count=1, **fields):
    """What comes of a batch of `count` requests that says what the model has to do."""
    outputs = [["OUT", None, 0, 0, False]] if outputs is None else outputs
    return server.execute(*(server.request(inputs, outputs, parameters={"code": code}, **fields) for _ in range(count)))


def read_text(server: ModelServer, answer) -> str:
    """The text that an obedient model answered."""
    assert "responses" in answer, answer
    response = answer["responses"][0]
    assert "outputs" in response, response
    _, datatype, _, segment, offset, byte_size = response["outputs"][0]
    assert datatype == "BYTES"
    return server.segments[segment].get(offset + 4, byte_size - 4).decode()


@pytest.fixture
def start(tmp_path):
    """Starts children; ends them. With `ready` true they have their model already, and places for outputs are found."""
    made = []

    def start(source, ready=True, **fields):
        server = ModelServer(tmp_path / str(len(made)), source, **fields)
        made.append(server)

        def on_need(index, name, byte_size):
            return {"at": [server.memory(byte_size + 64).segment, 64, byte_size]}

        server.on_need = on_need
        if ready:
            assert "ready" in server.initialize()
        return server

    yield start
    for one in made:
        one.__exit__()


def guard_library() -> pathlib.Path:
    """The guard as the last build of the server made it; skips the test where there is none."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", SOURCES.parents[2] / "target"))
    built = [one for one in target.glob("*/build/nerite-python-*/out/guard_library") if one.stat().st_size]
    if not built:
        pytest.skip("the guard has not been built: cargo build -p nerite-python")
    return max(built, key=lambda one: one.stat().st_mtime)


def assert_eventually(look, expected) -> None:
    """Waits until ``look`` returns ``expected``, which another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while look() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert look() == expected
