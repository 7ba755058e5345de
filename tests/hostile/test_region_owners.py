"""Can a client reach memory that is another user's, by naming its object or its region?

The server runs as root here, as in many containers, so it could open every object. Clients are threads with another effective
user: the kernel tells the server that user of their sockets.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from clients import Given, Refused, RequestedOutput
from frames import message
from meters import metric
from packets import SessionClient
from strangers import call_headers, data, hello
from users import as_user
from witness import PROTOCOLS, any_client, comes_to, stopped

SIZE = 64
IPV6 = socket.has_dualstack_ipv6()
ALICE, BOB = 65101, 65102


@pytest.fixture(autouse=True)
def only_root_can_be_somebody_else():
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")


@pytest.fixture(scope="module")
def server(launcher):
    """A server with its defaults, whose regions are all of these tests."""
    if launcher.oracle:
        pytest.skip("2.51 lets every client reach everything")
    with launcher.running("owners", repository=launcher.copy_of("owners", "identity_fp32")) as found:
        yield found


@contextlib.contextmanager
def an_object(name: str, uid: int, mode: int, fill: float):
    """An object of shared memory with 16 numbers, and its key."""
    path = pathlib.Path("/dev/shm") / f"nerite-owners-{os.getpid()}-{name}"
    path.write_bytes(np.full(SIZE // 4, fill, np.float32).tobytes())
    os.chown(path, uid, uid)
    path.chmod(mode)
    try:
        yield f"/{path.name}", path
    finally:
        path.unlink(missing_ok=True)


def call(at: str, method: str, path: str, document=None) -> tuple[int, str]:
    """One call on a connection of its own."""
    connection = http.client.HTTPConnection(at, timeout=60)
    connection.request(method, path, None if document is None else json.dumps(document))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def register(at: str, name: str, key: str, byte_size: int = SIZE) -> tuple[int, str]:
    return call(at, "POST", f"/v2/systemsharedmemory/region/{name}/register", {"key": key, "byte_size": byte_size})


def unregister(at: str, name: str = "") -> tuple[int, str]:
    region = f"/region/{name}" if name else ""
    return call(at, "POST", f"/v2/systemsharedmemory{region}/unregister", {})


def names(at: str) -> list[str]:
    status, text = call(at, "GET", "/v2/systemsharedmemory/status")
    assert status == 200, text
    return [region["name"] for region in json.loads(text)]


def infer(at: str, source: str, target: str | None = None) -> tuple[int, str]:
    """Copies region `source` through the identity model, into region `target` or inline."""
    place = lambda region: {"shared_memory_region": region, "shared_memory_byte_size": SIZE}
    output = {"name": "OUTPUT0", "parameters": place(target) if target else {"binary_data": False}}
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [SIZE // 4], "parameters": place(source)}
    return call(at, "POST", "/v2/models/identity_fp32/infer", {"inputs": [tensor], "outputs": [output]})


@pytest.mark.parametrize("mode, opens", [(0o600, False), (0o660, False), (0o644, False), (0o666, True)])
def test_an_object_is_opened_for_whom_its_mode_lets_in(server, mode, opens):
    """Another user's object is refused as the kernel would, without its size; its owner has it."""
    with an_object("mode", ALICE, mode, 1.0) as (key, _):
        status, text = as_user(BOB, lambda: register(server.http, "mode", key, 1 << 30))
        if opens:
            assert "Invalid args" in text or "bytes" in text, text
        else:
            assert status != 200 and f"user {BOB}" in text and f"user {ALICE}" in text, text
            assert f"{SIZE} bytes" not in text and "--shm-key-prefix" in text, text
        if mode & 0o600 == 0o600:
            status, text = as_user(ALICE, lambda: register(server.http, "mode", key))
            assert status == 200, text
            assert as_user(ALICE, lambda: unregister(server.http, "mode"))[0] == 200
    assert names(server.http) == []


def test_root_opens_all_as_root_can(server):
    """Root clients of a server that root runs notice nothing."""
    with an_object("root", ALICE, 0o600, 3.0) as (key, _):
        assert register(server.http, "root", key) == (200, "")
        status, text = infer(server.http, "root")
        assert status == 200 and json.loads(text)["outputs"][0]["data"] == [3.0] * 16
        assert unregister(server.http)[0] == 200


def test_a_region_is_its_users_own(server):
    """Another user neither lists, nor uses, nor replaces, nor unregisters it; the operator sees it."""
    with an_object("a", ALICE, 0o600, 1.0) as (alices, path), an_object("b", BOB, 0o600, 2.0) as (bobs, _):
        assert as_user(ALICE, lambda: register(server.http, "shared", alices))[0] == 200
        assert as_user(BOB, lambda: names(server.http)) == []
        status, text = as_user(BOB, lambda: infer(server.http, "shared"))
        assert status == 404 or status == 400, text
        assert "shared" in text and "--shm-scope=all" in text and "1.0" not in text, text
        status, text = as_user(BOB, lambda: call(server.http, "GET", "/v2/systemsharedmemory/region/shared/status"))
        assert status != 200 and alices not in text, text

        # The same name is another region of another user.
        assert as_user(BOB, lambda: register(server.http, "shared", bobs))[0] == 200
        assert '"data":[2.0' in as_user(BOB, lambda: infer(server.http, "shared"))[1].replace(" ", "")
        assert '"data":[1.0' in as_user(ALICE, lambda: infer(server.http, "shared"))[1].replace(" ", "")

        # The operator sees both, and its own call for all regions takes nobody's away.
        assert names(server.http) == ["shared", "shared"]
        assert unregister(server.http)[0] == 200
        assert as_user(BOB, lambda: unregister(server.http))[0] == 200
        assert as_user(BOB, lambda: names(server.http)) == []
        assert as_user(ALICE, lambda: names(server.http)) == ["shared"]

        # Nobody writes into it either.
        assert as_user(BOB, lambda: register(server.http, "mine", bobs))[0] == 200
        assert as_user(BOB, lambda: infer(server.http, "mine", "shared"))[0] != 200
        assert np.all(np.frombuffer(path.read_bytes(), np.float32) == 1.0)

        # The operator ends what it does not have itself.
        assert unregister(server.http, "shared")[0] == 200
        assert as_user(ALICE, lambda: names(server.http)) == []
        assert as_user(BOB, lambda: unregister(server.http))[0] == 200
    assert names(server.http) == []


@pytest.fixture(scope="module")
def shared_socket(launcher):
    """A server whose session socket two other users may use, and the socket."""
    if launcher.oracle:
        pytest.skip("2.51 has no sessions")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nerite-owners-"))
    folder.chmod(0o755)
    path = folder / "session"
    flags = [f"--session-socket={path}", f"--session-allow-uid={ALICE}", f"--session-allow-uid={BOB}"]
    try:
        with launcher.running("owners_session", *flags, repository=launcher.copy_of("owners_session", "identity_fp32")) as found:
            found.session = path
            yield found, path
    finally:
        shutil.rmtree(folder)


def test_a_session_opens_only_objects_of_its_user(shared_socket):
    """A session has the rights of the user who opened it, although the server may open every object."""
    server, path = shared_socket
    given = lambda name: [Given("INPUT0", "FP32", [SIZE // 4], region=(name, SIZE, 0))]
    with an_object("alices", ALICE, 0o600, 1.0) as (alices, _), an_object("bobs", BOB, 0o600, 2.0) as (bobs, _):
        with contextlib.closing(as_user(BOB, lambda: SessionClient(path))) as client:
            for size in (SIZE, 1 << 30):
                with pytest.raises(Refused) as caught:
                    client.register_system("secret", alices, size)
                text = caught.value.text
                assert f"user {BOB}" in text and f"user {ALICE}" in text and f"{SIZE} bytes" not in text, text
            assert client.status("system") == []
            # Nor does it reach what its owner registered.
            assert as_user(ALICE, lambda: register(server.http, "secret", alices))[0] == 200
            with pytest.raises(Refused):
                client.infer("identity_fp32", given("secret"))
            client.register_system("own", bobs, SIZE)
            assert client.infer("identity_fp32", given("own")).outputs["OUTPUT0"].raw == np.full(SIZE // 4, 2.0, np.float32).tobytes()
        with contextlib.closing(as_user(ALICE, lambda: SessionClient(path))) as client:
            client.register_system("own", alices, SIZE)
            assert client.infer("identity_fp32", given("own")).outputs["OUTPUT0"].raw == np.ones(SIZE // 4, np.float32).tobytes()
        assert as_user(ALICE, lambda: unregister(server.http, "secret"))[0] == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_inferences_of_root_reach_no_region_of_a_user(shared_socket, protocol):
    """Alice would choose what root reads, and read what root writes, by names that she guessed."""
    server, _ = shared_socket
    given = lambda name: [Given("INPUT0", "FP32", [SIZE // 4], region=(name, SIZE, 0))]
    wanted = lambda name: [RequestedOutput("OUTPUT0", (name, SIZE, 0))]
    with an_object("guessed", ALICE, 0o600, 1.0) as (alices, path), an_object("roots", 0, 0o600, 2.0) as (roots, _):
        assert as_user(ALICE, lambda: register(server.http, "guessed", alices))[0] == 200
        with any_client(protocol, server) as client:
            client.register_system("roots", roots, SIZE)
            for source, target in (("guessed", "roots"), ("roots", "guessed")):
                with pytest.raises(Refused) as caught:
                    client.infer("identity_fp32", given(source), wanted(target))
                assert f"user {ALICE} registered a region of that name" in caught.value.text, caught.value.text
            assert np.all(np.frombuffer(path.read_bytes(), np.float32) == 1.0)
            # A region of its own of that name is what root means.
            client.register_system("guessed", alices, SIZE)
            client.infer("identity_fp32", given("roots"), wanted("guessed"))
            assert np.all(np.frombuffer(path.read_bytes(), np.float32) == 2.0)
            for name in ("roots", "guessed"):
                client.unregister("system", name)
        assert as_user(ALICE, lambda: names(server.http)) == ["guessed"]
        assert unregister(server.http, "guessed")[0] == 200
    assert names(server.http) == []


@pytest.mark.parametrize("kind", ["lease", "session"])
def test_a_region_is_not_called_as_a_lease_or_a_session(server, kind):
    with an_object("called", BOB, 0o600, 1.0) as (key, _):
        name = f"{kind}-{'0123456789abcdef' * 2}"
        status, text = as_user(BOB, lambda: register(server.http, name, key))
        assert status == 400 and f"'{name}' is called as a {kind} is" in text, text
        assert as_user(BOB, lambda: register(server.http, f"{kind}-1", key))[0] == 200
        assert as_user(BOB, lambda: unregister(server.http))[0] == 200


@pytest.mark.usefixtures("nobody_else_is_harmed")
def test_one_user_cannot_take_all_places(victim):
    """Whoever registers without end is refused while others still find places."""
    with an_object("mine", ALICE, 0o600, 1.0) as (mine, _), an_object("theirs", BOB, 0o600, 2.0) as (theirs, _):

        def flood() -> tuple[int, str]:
            connection, count = http.client.HTTPConnection(victim.http, timeout=60), 0
            while True:
                path = f"/v2/systemsharedmemory/region/flood{count}/register"
                connection.request("POST", path, json.dumps({"key": mine, "byte_size": SIZE}))
                answer = connection.getresponse()
                text = answer.read().decode()
                if answer.status != 200:
                    return count, text
                count += 1

        count, text = as_user(ALICE, flood)
        assert count == 12_288 and "at most 12288" in text, (count, text)
        assert as_user(BOB, lambda: register(victim.http, "one", theirs))[0] == 200
        assert as_user(BOB, lambda: infer(victim.http, "one"))[0] == 200
        assert as_user(BOB, lambda: unregister(victim.http))[0] == 200
        assert as_user(ALICE, lambda: unregister(victim.http))[0] == 200


# In a process of its own: the threads on which gRPC connects may be there already, as root's.
OVER_GRPC = """
import json, os, sys, grpc, tritonclient.grpc
from tritonclient.grpc import service_pb2 as pb, service_pb2_grpc
at, uid, calls = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
os.setgid(uid), os.setuid(uid)
stub, told = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(at)), []
for name, key, byte_size in calls:
    try:
        if key:
            request = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=byte_size)
            stub.SystemSharedMemoryRegister(request, timeout=60)
        else:
            stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest(name=name), timeout=60)
        told.append("")
    except grpc.RpcError as error:
        told.append(error.details())
print(json.dumps(told))
"""


def each_over_grpc(at: str, uid: int, calls: list[tuple[str, str, int]], *before: str) -> list[str]:
    """Registers regions, or without a key unregisters one; what is said to each refusal, and "" to each success."""
    command = [*before, sys.executable, "-c", OVER_GRPC, at, str(uid), json.dumps(calls)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def each_over_http(at: str, uid: int, calls: list[tuple[str, str, int]]) -> list[str]:
    act = lambda name, key, size: register(at, name, key, size) if key else unregister(at, name)
    return as_user(uid, lambda: [text if status != 200 else "" for status, text in (act(*each) for each in calls)])


@pytest.mark.parametrize("each_over", [each_over_http, each_over_grpc])
def test_one_user_cannot_take_all_address_space(server, each_over):
    """Objects without a page of memory, up to the bound; the next is refused with both numbers until one is unregistered."""
    at = server.http if each_over is each_over_http else server.grpc
    # A user may map 20 times the memory.
    huge = 4 * metric(server, "nv_cpu_memory_total_bytes")
    with contextlib.ExitStack() as held:
        keys = [held.enter_context(an_object(f"huge{n}", ALICE, 0o600, 0.0)) for n in range(5)]
        for _, path in keys:
            os.truncate(path, huge)
        small, _ = held.enter_context(an_object("small", ALICE, 0o600, 0.0))
        others, _ = held.enter_context(an_object("others", BOB, 0o600, 0.0))
        fill = [(f"huge{n}", key, huge) for n, (key, _) in enumerate(keys)]
        *full, refused = each_over(at, ALICE, [*fill, ("small", small, SIZE)])
        assert full == [""] * len(fill)
        assert re.search(r"\(5 regions of (\d+ .iB) are mapped, at most 12288 of \1 may be, asked for .* more; unregister some", refused), refused
        assert each_over(at, BOB, [("others", others, SIZE), ("others", "", 0)]) == ["", ""]
        assert each_over(at, ALICE, [("huge0", "", 0), ("small", small, SIZE), ("", "", 0)]) == [""] * 3
    assert names(server.http) == []


@contextlib.contextmanager
def another_host():
    """The beginning of a command line that runs on what the server takes for another host, the address of the server there, and the device to there.

    The other host has the IPv6 addresses fd00:77:1::2, fd00:77:1::3 and fd00:77:2::2 where there is IPv6, the server fd00:77:1::1
    and fe80::77.
    """
    space, outside, inside = (f"nerite{os.getpid()}{part}" for part in ("", "o", "i"))
    subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    ip = lambda *words: subprocess.run(["ip", *words], capture_output=True, check=False).returncode
    if not shutil.which("ip") or ip("netns", "add", space):
        pytest.skip("needs a network namespace")
    try:
        made = ip("link", "add", outside[:15], "type", "veth", "peer", "name", inside[:15], "netns", space)
        made = made or ip("addr", "add", f"{subnet}.1/24", "dev", outside[:15]) or ip("link", "set", outside[:15], "up")
        made = made or ip("-n", space, "addr", "add", f"{subnet}.2/24", "dev", inside[:15])
        if made or ip("-n", space, "link", "set", inside[:15], "up"):
            pytest.skip("needs a pair of network devices")
        # Without a search for others that have them, so that they can be used at once.
        ip("addr", "add", "fe80::77/64", "dev", outside[:15], "nodad")
        for network, hosts in ((1, (2, 3)), (2, (2,))):
            ip("addr", "add", f"fd00:77:{network}::1/64", "dev", outside[:15], "nodad")
            for host in hosts:
                ip("-n", space, "addr", "add", f"fd00:77:{network}::{host}/64", "dev", inside[:15], "nodad")
        yield ["ip", "netns", "exec", space], f"{subnet}.1", outside[:15]
    finally:
        ip("netns", "del", space)


OVER_HTTP = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
connection.request("POST", sys.argv[2], sys.argv[3])
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


def test_a_stranger_of_another_host_is_told_neither_owner_nor_size(launcher):
    """Nor whether its guess of the size was right."""
    if launcher.oracle:
        pytest.skip("2.51 lets every client reach everything")
    repository = launcher.copy_of("strangers_regions", "identity_fp32")
    with another_host() as (there, address, _), an_object("secret", ALICE, 0o600, 1.0) as (key, _):
        flags = ["--http-address=0.0.0.0", "--grpc-address=0.0.0.0"]
        with launcher.running("strangers_regions", *flags, repository=repository) as server:
            port = lambda url: f"{address}:{url.rpartition(':')[2]}"
            texts = []
            for size in (SIZE, 1 << 30):
                path, body = "/v2/systemsharedmemory/region/secret/register", json.dumps({"key": key, "byte_size": size})
                command = [*there, sys.executable, "-c", OVER_HTTP, port(server.http), path, body]
                answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
                assert not answer.startswith("200"), answer
                texts += [answer.partition(" ")[2], *each_over_grpc(port(server.grpc), 0, [("secret", key, size)], *there)]
            for text in texts:
                assert "address 10." in text, text
                assert str(ALICE) not in text and f"{SIZE} bytes" not in text, text
            assert texts[0].strip() == texts[2].strip() and texts[1] == texts[3]


def test_the_operator_may_open_what_it_wants(launcher):
    """A prefix lets everybody in; trust in any and a common scope are Triton's way."""
    if launcher.oracle:
        pytest.skip("2.51 has no such flags")
    repository = launcher.copy_of("trusting", "identity_fp32")
    prefix = f"/nerite-owners-{os.getpid()}-cam"
    with (
        an_object("cam0", ALICE, 0o600, 1.0) as (open_key, _),
        an_object("mic0", ALICE, 0o600, 2.0) as (closed_key, _),
    ):
        with launcher.running("prefix", f"--shm-key-prefix={prefix}", repository=repository) as server:
            assert as_user(BOB, lambda: register(server.http, "cam", open_key))[0] == 200
            assert as_user(BOB, lambda: register(server.http, "mic", closed_key))[0] != 200
        with launcher.running("triton", "--shm-trust=any", "--shm-scope=all", repository=repository) as server:
            assert as_user(BOB, lambda: register(server.http, "mic", closed_key))[0] == 200
            assert as_user(ALICE, lambda: names(server.http)) == ["mic"]
            assert '"data":[2.0' in as_user(ALICE, lambda: infer(server.http, "mic"))[1].replace(" ", "")
            assert as_user(ALICE, lambda: unregister(server.http))[0] == 200
            assert names(server.http) == []


# ------------------------------------------------------------------------------------ Who is it that connects?


def connected(address: str, port: int, device: str = "") -> socket.socket:
    """A connection from a socket that is bound to the device, where one is named."""
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    one = socket.socket(family, kind, protocol)
    one.settimeout(60)
    if device:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    one.connect(place)
    return one


def register_over(one: socket.socket, name: str, key: str) -> tuple[int, str]:
    """Registers an object as a region over that connection, and closes it."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = one
    connection.request("POST", f"/v2/systemsharedmemory/region/{name}/register", json.dumps({"key": key, "byte_size": SIZE}))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture(scope="module")
def open_server(launcher):
    """A server that listens at all addresses, with a line of its log for each request, and the namespace of another host."""
    if launcher.oracle:
        pytest.skip("2.51 lets every client reach everything")
    flags = ["--http-address=::" if IPV6 else "--http-address=0.0.0.0", "--log-access=true"]
    repository = launcher.copy_of("identified", "identity_fp32")
    with another_host() as host, launcher.running("identified", *flags, repository=repository) as server:
        yield server, host


@pytest.mark.parametrize("way", ["loopback", "loopback over IPv6", "device", "device over IPv6", "scope", "scope and device"])
def test_a_client_that_is_bound_to_a_device_has_the_rights_of_its_user(open_server, way):
    """The kernel finds such a socket by its device only. Without that, the client would count as one of another host, which has more rights."""
    server, (_, address, device) = open_server
    if way not in ("loopback", "device") and not IPV6:
        pytest.skip("needs IPv6")
    at, bound = {
        "loopback": ("127.0.0.1", "lo"),
        "loopback over IPv6": ("::1", "lo"),
        "device": (address, device),
        "device over IPv6": ("fd00:77:1::1", device),
        "scope": (f"fe80::77%{device}", ""),
        "scope and device": (f"fe80::77%{device}", device),
    }[way]
    port = int(server.http.rpartition(":")[2])
    with an_object("roots", 0, 0o600, 1.0) as (roots, _), an_object("bobs", BOB, 0o600, 2.0) as (bobs, _):
        register = lambda name, key: as_user(BOB, lambda: register_over(connected(at, port, bound), name, key))
        status, text = register("roots", roots)
        assert status != 200 and f"user {BOB} asks for an object of user 0" in text, text
        assert register("bobs", bobs) == (200, "")
        assert as_user(BOB, lambda: names(server.http)) == ["bobs"]
        assert as_user(BOB, lambda: unregister(server.http))[0] == 200
    assert names(server.http) == []


def registration_over_http(name: str, key: str) -> bytes:
    body = json.dumps({"key": key, "byte_size": SIZE})
    return f"POST /v2/systemsharedmemory/region/{name}/register HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def registration_over_grpc(name: str, key: str) -> bytes:
    texts = [bytes([number << 3 | 2, len(text)]) + text.encode() for number, text in ((1, name), (2, key))]
    size = bytes([4 << 3, SIZE])
    return hello() + call_headers("SystemSharedMemoryRegister", 1) + data(1, message(b"".join(texts) + size), end=True)


@pytest.mark.parametrize(("protocol", "registration"), [("http", registration_over_http), ("grpc", registration_over_grpc)])
def test_a_client_that_hides_has_only_what_is_open_to_all(open_server, protocol, registration):
    """It connects and asks while the server is stopped, and is bound to another device when the server looks for its user."""
    server, (*_, device) = open_server
    port = int(getattr(server, protocol).rpartition(":")[2])

    def register(name: str, key: str) -> socket.socket:
        one = connected("127.0.0.1", port)
        one.sendall(registration(name, key))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        return one

    def of_hidden() -> list[str]:
        """The lines of the log about such calls, of clients without a user."""
        return [line for line in server.log_text().splitlines() if "call=shared-memory" in line and 'peer="user' not in line]

    before = len(of_hidden())
    with an_object("roots", 0, 0o600, 1.0) as (roots, _), an_object("open", 0, 0o666, 2.0) as (everybodys, _):
        with stopped(server):
            answers = as_user(BOB, lambda: [register("roots", roots), register("open", everybodys)])
        comes_to(lambda: len(of_hidden()), before + 2)
        assert names(server.http) == ["open"], of_hidden()
        assert all('peer="an unidentified client of this host"' in line for line in of_hidden()[before:]), of_hidden()
        # The operator ends what such a client registered.
        assert unregister(server.http, "open")[0] == 200
    for one in answers:
        one.close()
    assert names(server.http) == []


FROM = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=60, source_address=(sys.argv[2], 0))
connection.request(sys.argv[3], sys.argv[4], sys.argv[5] or None)
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""


def test_a_network_of_ipv6_is_one_client(open_server):
    """One host has all addresses of such a network, so its regions and its bounds are those of the network."""
    server, (there, *_) = open_server
    if not IPV6:
        pytest.skip("needs IPv6")
    at = f"[fd00:77:1::1]:{server.http.rpartition(':')[2]}"

    def register(source: str, method: str, path: str, body: str = "") -> str:
        command = [*there, sys.executable, "-c", FROM, at, source, method, f"/v2/systemsharedmemory/{path}", body]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.strip()

    with an_object("theirs", ALICE, 0o666, 1.0) as (key, _):
        document = json.dumps({"key": key, "byte_size": SIZE})
        assert register("fd00:77:1::2", "POST", "region/theirs/register", document) == "200"
        assert '"theirs"' in register("fd00:77:1::3", "GET", "status")
        assert register("fd00:77:2::2", "GET", "status") == "200 []"
        assert register("fd00:77:1::3", "POST", "region/theirs/unregister", "{}") == "200"
        refused = register("fd00:77:2::2", "GET", "region/theirs/status")
        assert "network fd00:77:2::/64 reaches" in refused, refused
