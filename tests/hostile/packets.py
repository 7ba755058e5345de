"""How does a test speak packets to the session socket, well or badly?

docs/session.md is the contract. The messages are made from crates/wire/proto/session.proto itself, so no compiled copy of
it can be out of date.
"""

import array
import contextlib
import fcntl
import itertools
import mmap
import os
import pathlib
import queue
import re
import socket
import struct
import threading

import grpc
from clients import GrpcClient, Made, Refused, Reply, parameters_of, pb
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from older_kernel import SO_PASSRIGHTS
from servers import tests_older_kernel

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "crates" / "wire" / "proto" / "session.proto"
PACKET_BYTES_MAX = 131_072
DESCRIPTORS_MAX = 128
TIMEOUT_S = 60
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16

# ---------------------------------------------------------------------------------------------- messages

SCALARS = {"string": 9, "bytes": 12, "uint64": 4, "uint32": 13, "bool": 8, "int64": 3, "int32": 5, "double": 1, "float": 2}


def read_schema(text: str) -> descriptor_pb2.FileDescriptorProto:
    """As much of proto3 as session.proto uses: messages with at most one oneof, enums, repeated fields, maps of strings.
    Whether an optional field was there is not kept."""
    made = descriptor_pb2.FileDescriptorProto(name="session.proto", syntax="proto3")
    enums = set(re.findall(r"^enum (\w+) \{", text, re.MULTILINE))
    block = choice = None
    for line in (line.split("//")[0].strip() for line in text.splitlines()):
        if found := re.fullmatch(r"package (\S+);", line):
            made.package = found[1]
        elif found := re.fullmatch(r"(message|enum) (\w+) \{\}?", line):
            block = (made.message_type if found[1] == "message" else made.enum_type).add(name=found[2])
        elif found := re.fullmatch(r"oneof (\w+) \{", line):
            choice = len(block.oneof_decl)
            block.oneof_decl.add(name=found[1])
        elif line == "}":
            choice = None
        elif found := re.fullmatch(r"map<string, string> (\w+) = (\d+);", line):
            add_map(made.package, block, found[1], int(found[2]))
        elif found := re.fullmatch(r"(repeated |optional )?(\w+) (\w+) = (\d+);", line):
            field = block.field.add(name=found[3], number=int(found[4]), label=3 if found[1] == "repeated " else 1)
            set_type(made.package, enums, field, found[2])
            if choice is not None:
                field.oneof_index = choice
        elif found := re.fullmatch(r"(\w+) = (\d+);", line):
            block.value.add(name=found[1], number=int(found[2]))
        else:
            assert line in ("", 'syntax = "proto3";'), line
    return made


def set_type(package: str, enums: set[str], field, name: str) -> None:
    if name in SCALARS:
        field.type = SCALARS[name]
    else:
        field.type, field.type_name = 14 if name in enums else 11, f".{package}.{name}"


def add_map(package: str, message, name: str, number: int) -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    for at, key in enumerate(("key", "value"), 1):
        entry.field.add(name=key, number=at, label=1, type=9)
    message.field.add(name=name, number=number, label=3, type=11, type_name=f".{package}.{message.name}.{entry.name}")


POOL = descriptor_pool.DescriptorPool()
FILE = POOL.Add(read_schema(SCHEMA.read_text())) or POOL.FindFileByName("session.proto")
ClientMessage, ServerMessage = (
    message_factory.GetMessageClass(FILE.message_types_by_name[name]) for name in ("ClientMessage", "ServerMessage")
)


def encode(id: int, returned=(), **call) -> bytes:
    """A packet with one call: `encode(3, borrow={"byte_size": 64})`."""
    return ClientMessage(id=id, returned=returned, **call).SerializeToString()


HELLO = {"version_min": 1, "version_max": 1, "client": "hostile"}

# ---------------------------------------------------------------------------------------------- one socket


def refuses_descriptors() -> bool:
    """Whether the kernel of the servers can refuse descriptors that are passed to a Unix socket (Linux 6.16 and later)."""
    if tests_older_kernel():
        return False
    with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        return True
    return False


class Raw:
    """A connected socket on which a test writes what it likes. Its descriptors are closed with it."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # With a time limit the call would not wait where many others connect as well.
        self.socket.connect(str(path))
        self.socket.settimeout(TIMEOUT_S)

    def send(self, packet: bytes, descriptors=()) -> None:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.socket.sendmsg([packet], control)

    def send_anyway(self, packet: bytes) -> bool:
        """Whether it could be sent; a server that has had enough closes."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(packet)
            return True
        return False

    def call(self, id: int, returned=(), **call) -> None:
        self.send(encode(id, returned, **call))

    def receive(self):
        """The next message and its descriptors; (None, []) at the end."""
        room = socket.CMSG_SPACE(4 * DESCRIPTORS_MAX)
        try:
            packet, control, flags, _ = self.socket.recvmsg(PACKET_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None, []
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), flags
        descriptors = array.array("i")
        for _, _, bytes_ in control:
            descriptors.frombytes(bytes_)
        return (ServerMessage.FromString(packet) if packet else None), list(descriptors)

    def answer(self):
        """The next message, which must bring no descriptor; None at the end."""
        message, descriptors = self.receive()
        assert descriptors == []
        return message

    def refusal(self) -> str:
        message = self.answer()
        assert message is not None and message.WhichOneof("answer") == "error", message
        return message.error.message

    def ended(self) -> bool:
        """Reads all there is, up to the end."""
        while True:
            message, descriptors = self.receive()
            for one in descriptors:
                os.close(one)
            if message is None:
                return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def welcomed(path, headers: dict[str, str] | None = None) -> Raw:
    raw = Raw(path)
    raw.call(1, hello=HELLO | {"headers": headers or {}})
    answer = raw.answer()
    assert answer is not None and answer.WhichOneof("answer") == "welcome", answer
    raw.welcome = answer.welcome
    return raw


# ---------------------------------------------------------------------------------------------- leases


class Lease:
    """Memory that a session was lent, mapped here. `descriptor` is kept open for tests that misuse it."""

    def __init__(self, name: str, byte_size: int, descriptor: int):
        assert os.fstat(descriptor).st_size == byte_size
        assert fcntl.fcntl(descriptor, F_GET_SEALS) & SEAL_SHRINK
        self.name, self.byte_size, self.descriptor = name, byte_size, descriptor
        self.map = mmap.mmap(descriptor, byte_size)

    def read(self, byte_size: int, offset: int = 0) -> bytes:
        return self.map[offset : offset + byte_size]

    def write(self, content: bytes, offset: int = 0) -> None:
        self.map[offset : offset + len(content)] = content

    def close(self) -> None:
        """Ends this side's mapping; the lease stays lent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.map.close()
            self.descriptor = -1


def lease_of(message, descriptors: list[int]) -> Lease:
    """The lease of a Lease message which must be new to the session."""
    assert message.descriptor, message
    return Lease(message.name, message.byte_size, descriptors.pop(0))


# ---------------------------------------------------------------------------------------------- a client


class SessionClient:
    """A session that keeps the rules, for any number of threads; asked in the words of the other clients."""

    protocol = "session"

    def __init__(self, path, headers: dict[str, str] | None = None):
        self.raw = welcomed(path, headers)
        self.welcome = self.raw.welcome
        self.raw.socket.settimeout(None)
        self.ids, self.lock = itertools.count(2), threading.Lock()
        self.waiting: dict[int, queue.SimpleQueue] = {}
        self.leases: dict[str, Lease] = {}
        self.forgotten: list[str] = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        while True:
            try:
                message, descriptors = self.raw.receive()
            except OSError:
                message, descriptors = None, []
            if message is None:
                break
            self.forgotten += message.forgotten
            if message.id:
                self.waiting[message.id].put((message, descriptors))
        for one in list(self.waiting.values()):
            one.put((None, []))

    def call(self, **call):
        """The answer to one call, with its descriptors."""
        answers = queue.SimpleQueue()
        with self.lock:
            id = next(self.ids)
            self.waiting[id] = answers
            self.raw.call(id, **call)
        message, descriptors = answers.get(timeout=2 * TIMEOUT_S)
        del self.waiting[id]
        if message is None:
            raise Refused(None, "the session has ended")
        if message.WhichOneof("answer") == "error":
            raise Refused(STATUS[message.error.code], message.error.message)
        return message, descriptors

    def infer(self, model, inputs, outputs=None, version="", id="", parameters=None, leased=()) -> Reply:
        """`leased` outputs come as what they hold, read from the lease that the server chose."""
        request = GrpcClient.request(self, model, inputs, outputs, version, id, parameters)
        call = {"request": request.SerializeToString(), "leased_outputs": leased}
        message, descriptors = self.call(infer=call)
        answer = pb.ModelInferResponse.FromString(message.inference.response)
        in_region = {one.name for one in outputs or [] if one.region}
        made = {}
        for one, raw in zip(answer.outputs, answer.raw_output_contents):
            made[one.name] = Made(one.datatype, list(one.shape), None if one.name in in_region else raw)
        for one in message.inference.placed:
            lease = self.keep(one.lease, descriptors)
            made[one.output].raw = lease.read(one.byte_size, one.offset)
            self.call(returned=[lease.name])
        assert descriptors == []
        return Reply(answer.model_name, answer.model_version, answer.id, made, parameters_of(answer))

    def keep(self, message, descriptors) -> Lease:
        if message.descriptor:
            self.leases[message.name] = lease_of(message, descriptors)
        return self.leases[message.name]

    def borrow(self, byte_size: int, content: bytes = b"") -> Lease:
        message, descriptors = self.call(borrow={"byte_size": byte_size})
        lease = self.keep(message.lease, descriptors)
        lease.write(content)
        return lease

    def give_back(self, lease: Lease) -> None:
        self.call(returned=[lease.name])

    def used(self):
        return self.call(session_status={})[0].session_report

    def register_system(self, name, key, byte_size, offset=0) -> None:
        self.call(register_system={"name": name, "key": key, "offset": offset, "byte_size": byte_size})

    def unregister(self, kind: str, name="") -> None:
        assert kind == "system"
        self.call(unregister_system={"name": name})

    def status(self, kind: str, name="") -> list[str]:
        assert kind == "system"
        return [one.name for one in self.call(system_status={"name": name})[0].regions.regions]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.raw.socket.shutdown(socket.SHUT_RDWR)
        self.reader.join()
        self.raw.close()
        for lease in self.leases.values():
            lease.close()


STATUS = {one.value[0]: one for one in grpc.StatusCode}


@contextlib.contextmanager
def open_session(path):
    with contextlib.closing(SessionClient(path)) as client:
        yield client


def peer_pid(path) -> int:
    """Who listens at a session socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.connect(str(path))
        return struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
