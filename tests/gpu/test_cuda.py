"""Do Triton's clients reach device memory through nerite?

The server's driver, and the client's, is the stand-in of crates/cuda/tests/stand_in: CUDA's symbols over host memory, no
CUDA. It proves who asks the driver what, and that everything is given back.
"""

import contextlib
import http.client
import os
import pathlib
import shutil
import struct
import subprocess
import threading

import gevent
import nerite
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from clients import Refused, http_call, open_client
from cuda_client import Device

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "crates/cuda/tests/stand_in/stand_in_driver.c"
DELAY_MS = 1500
DELAYED = f"""\
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{DELAY_MS}" }} }}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> pathlib.Path:
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("stand_in") / "libstand_in_driver.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, SOURCE], check=True)
    return library


@pytest.fixture(scope="module")
def device(library) -> Device:
    return Device(library)


@pytest.fixture(scope="module")
def cuda_server(launcher, library, device, tmp_path_factory):
    """A server over the stand-in, and where it counts what it has open."""
    if launcher.oracle:
        pytest.skip("2.51 here is built without GPUs")
    counts = tmp_path_factory.mktemp("counts") / "counts"
    repository = launcher.copy_of("cuda", "identity_fp32", "identity_bytes")
    (repository / "delayed" / "1").mkdir(parents=True)
    (repository / "delayed" / "config.pbtxt").write_text(DELAYED)
    with pytest.MonkeyPatch.context() as patch:
        # This process has opened its own driver by now, and counts apart.
        patch.setenv("NERITE_CUDA_LIBRARY", str(library))
        patch.setenv("STAND_IN_COUNTS", str(counts))
        with launcher.running("cuda", repository=repository) as found:
            found.counts = counts
            yield found


def imports(server) -> int:
    """IPC handles that the server has open: the third of the stand-in's counts."""
    return struct.unpack_from("<3q", server.counts.read_bytes())[2]


def carried(server) -> int:
    """Bytes that went between host and device."""
    name = 'nerite_copied_bytes_total{reason="cross_device"} '
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    return next(int(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name))


def client_of(kind, server):
    return kind.InferenceServerClient(server.http if kind is tritonclient.http else server.grpc)


def tensors(kind, datatype: str, count: int, byte_size: int):
    """INPUT0 at the start of the region `gpu`, OUTPUT0 behind it."""
    given = kind.InferInput("INPUT0", [count], datatype)
    given.set_shared_memory("gpu", byte_size)
    wanted = kind.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("gpu", byte_size, offset=byte_size)
    return [given], [wanted]


@pytest.mark.parametrize("kind", [tritonclient.http, tritonclient.grpc])
def test_tritons_clients_infer_through_device_memory(cuda_server, device, kind):
    with device.memory(4096) as (address, handle), contextlib.closing(client_of(kind, cuda_server)) as triton_client:
        triton_client.unregister_cuda_shared_memory()
        triton_client.register_cuda_shared_memory("gpu", handle, 0, 4096)
        numbers = np.arange(100, dtype=np.float32).tobytes()
        device.write(address, numbers)
        before = carried(cuda_server)
        given, wanted = tensors(kind, "FP32", 100, 400)
        triton_client.infer("identity_fp32", given, outputs=wanted)
        assert device.read(address + 400, 400) == numbers
        assert carried(cuda_server) - before == 800
        texts = b"".join(struct.pack("<I", len(text)) + text for text in [b"a", b"", b"ccc"])
        device.write(address, texts)
        given, wanted = tensors(kind, "BYTES", 3, len(texts))
        triton_client.infer("identity_bytes", given, outputs=wanted)
        assert device.read(address + len(texts), len(texts)) == texts
        triton_client.unregister_cuda_shared_memory("gpu")
        assert imports(cuda_server) == 0


@pytest.mark.parametrize("kind", [tritonclient.http, tritonclient.grpc])
def test_a_region_that_a_request_uses_stays_until_it_is_answered(cuda_server, device, kind):
    with device.memory(4096) as (address, handle), contextlib.closing(client_of(kind, cuda_server)) as triton_client:
        triton_client.register_cuda_shared_memory("gpu", handle, 0, 4096)
        device.write(address, b"abcd")
        given, wanted = tensors(kind, "FP32", 1, 4)
        before = carried(cuda_server)
        with contextlib.closing(client_of(kind, cuda_server)) as other:
            if kind is tritonclient.http:
                waiting = other.async_infer("delayed", given, outputs=wanted).get_result
            else:
                answers = []
                other.async_infer("delayed", given, lambda result, error: answers.append((result, error)), outputs=wanted)
                waiting = lambda: comes(lambda: answers)  # noqa: E731
            # Its input has been carried, so the model runs, and waits.
            comes(lambda: carried(cuda_server) > before)
            triton_client.unregister_cuda_shared_memory()
            assert "gpu" in str(triton_client.get_cuda_shared_memory_status())
            assert imports(cuda_server) == 1
            waiting()
        assert device.read(address + 4, 4) == b"abcd"
        # Whoever waits for the answer may have it a moment before the server has let go.
        comes(lambda: imports(cuda_server) == 0)
        with open_client("http", cuda_server) as client, pytest.raises(Refused, match="Unable to find cuda shared memory"):
            client.status("cuda", "gpu")


def comes(happens) -> None:
    """Waits for something. How long it takes is no matter of these tests, only that it comes.

    It waits as gevent does: tritonclient sends an asynchronous request over HTTP in a greenlet, which runs only while this one waits.
    """
    for _ in range(6000):
        if happens():
            return
        gevent.sleep(0.01)
    raise AssertionError("it never came")


CONNECTIONS = 8


def register_cuda_over_http(server, handle):
    with contextlib.closing(client_of(tritonclient.http, server)) as client:
        client.register_cuda_shared_memory("gpu", handle, 0, 4096)


def register_cuda_over_grpc(server, handle):
    with contextlib.closing(client_of(tritonclient.grpc, server)) as client:
        client.register_cuda_shared_memory("gpu", handle, 0, 4096)


def register_system_over_http(server, _handle):
    with contextlib.closing(client_of(tritonclient.http, server)) as client:
        client.register_system_shared_memory("host", server.key, 4096)


def register_system_over_grpc(server, _handle):
    with contextlib.closing(client_of(tritonclient.grpc, server)) as client:
        client.register_system_shared_memory("host", server.key, 4096)


def borrow_in_a_session(server, _handle):
    with nerite.connect(f"unix:{server.session_socket}") as client:
        client.model("identity_fp32")(INPUT0=np.zeros(100, np.float32))


@pytest.mark.parametrize(
    "first_use",
    [
        register_cuda_over_http,
        register_cuda_over_grpc,
        register_system_over_http,
        register_system_over_grpc,
        borrow_in_a_session,
    ],
)
def test_a_driver_that_takes_long_for_its_first_context_delays_nobody_else(launcher, library, device, tmp_path, first_use):
    if launcher.oracle:
        pytest.skip("2.51 here is built without GPUs")
    gate, session_socket = tmp_path / "gate", tmp_path / "session"
    object_path = pathlib.Path(f"/dev/shm/nerite-test-slow-context-{os.getpid()}")
    with contextlib.ExitStack() as held:
        patch = held.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("NERITE_CUDA_LIBRARY", str(library))
        patch.setenv("STAND_IN_GATE", str(gate))
        server = held.enter_context(launcher.running("slow-context", f"--session-socket={session_socket}"))
        server.session_socket, server.key = session_socket, f"/{object_path.name}"
        _, handle = held.enter_context(device.memory(4096))
        object_path.write_bytes(bytes(4096))
        held.callback(object_path.unlink)
        held.callback(gate.touch)
        # They are spread over all front threads.
        others = [held.enter_context(contextlib.closing(connection_to(server))) for _ in range(CONNECTIONS)]
        for other in others:
            assert health_of(other) == 200
        failed = []
        user = threading.Thread(target=lambda: failed.extend(error_of(first_use, server, handle)))
        user.start()
        comes(gate.with_name("gate.reached").exists)
        # If the driver were asked on a front thread, its connections would not be answered.
        for other in others:
            assert health_of(other) == 200
        assert user.is_alive()
        gate.touch()
        user.join()
        assert not failed


def connection_to(server) -> http.client.HTTPConnection:
    host, _, port = server.http.rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=60)


def error_of(first_use, server, handle) -> list[Exception]:
    try:
        first_use(server, handle)
    except Exception as error:  # noqa: BLE001
        return [error]
    return []


def health_of(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/v2/health/live")
    response = connection.getresponse()
    response.read()
    return response.status
