"""Does a client delay others by making the server the last user of a large object?

The kernel frees an object's pages when its name is gone and its last mapping ends, in the thread that ends it: 0.28 s for 1 GiB. A region of one page is
such a mapping, of the whole object. So no thread that serves connections may end one.
"""

import concurrent.futures
import contextlib
import os
import shutil
import urllib.request

import pytest
from clients import Given, Refused, RequestedOutput
from meanwhile import Delay, again_if_too_late
from regions import Region, fresh_name
from server_setup import DELAY_MS, put_delayed
from witness import PROTOCOLS, any_client, are_answered, comes_to, descriptors, mapped_objects, maps_with, settled, witnesses

PAGE = os.sysconf("SC_PAGESIZE")
OBJECT_BYTES = 1 << 30
# No poll of a connection may take more processor time. The kernel's work for the object counts.
CPU_S_MAX = "0.1"
FAMILY = "nerite_front_thread_busy_cpu_seconds"
QUICK = 20


@pytest.fixture(scope="module")
def server(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("2.51 holds a lock meanwhile")
    if shutil.disk_usage("/dev/shm").free < 2 * OBJECT_BYTES:
        pytest.skip("/dev/shm has no room for the objects")
    repository = launcher.copy_of("freed_objects", "identity_fp32", "simple")
    put_delayed(repository, "delayed", DELAY_MS)
    socket = tmp_path_factory.mktemp("session") / "socket"
    with launcher.running("freed_objects", f"--session-socket={socket}", repository=repository) as found:
        found.session = socket
        yield found


def long_polls(server) -> int:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as page:
        lines = [line.rsplit(" ", 1) for line in page.read().decode().splitlines() if line.startswith(FAMILY)]
    found = {name: float(count) for name, count in lines}
    return int(found[f"{FAMILY}_count"] - found[f'{FAMILY}_bucket{{le="{CPU_S_MAX}"}}'])


@contextlib.contextmanager
def nobody_waits(server):
    before = long_polls(server)
    open_before = settled(lambda: descriptors(server.pid))
    with witnesses(server) as watching:
        yield
        are_answered(watching, 3)
    assert long_polls(server) == before
    comes_to(lambda: mapped_objects(server.pid), 0)
    comes_to(lambda: descriptors(server.pid), open_before)


@contextlib.contextmanager
def registered_page(client, at: int = 0):
    """One page of a large object that has all its pages. The test's own mapping and its name are gone after the block."""
    with contextlib.closing(Region(OBJECT_BYTES)) as made:
        descriptor = os.open(made.path, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, 0, OBJECT_BYTES)
            made.name = fresh_name()
            client.register_system(made.name, made.key, PAGE, at)
            yield made, descriptor
        finally:
            os.close(descriptor)


def infer(client, name: str, model: str) -> None:
    given = Given("INPUT0", "FP32", [16], region=(name, 64, 0))
    client.infer(model, [given], [RequestedOutput("OUTPUT0", (name, 64, 64))])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_that_ends_when_it_is_unregistered(server, protocol):
    with nobody_waits(server), any_client(protocol, server) as client:
        with registered_page(client) as (made, _):
            infer(client, made.name, "identity_fp32")
        client.unregister("system", made.name)
        # The call waits for the object, because its owner pays until then.
        assert maps_with(server.pid, made.key) == 0


@again_if_too_late
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_that_ends_with_its_last_request(server, protocol):
    with nobody_waits(server), any_client(protocol, server) as client, any_client(protocol, server) as second:
        # A session's regions are its own, and its client may be used by two threads.
        other = client if protocol == "session" else second
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with registered_page(client) as (made, _):
                delay = Delay(DELAY_MS)
                running = pool.submit(infer, client, made.name, "delayed")
                delay.wait_for_requests(server, "delayed")
            other.unregister("system", made.name)
            assert maps_with(server.pid, made.key) == 1
            delay.must_last()
            running.result()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_that_ends_when_a_page_of_it_was_lost(server, protocol):
    """The access of a request finds no memory. The guard replaces the mapping, in the thread of the access, and the name is registered anew."""
    with nobody_waits(server), any_client(protocol, server) as client:
        with registered_page(client, OBJECT_BYTES - PAGE) as (made, descriptor):
            # So often that the next one is run by a thread that serves connections.
            for _ in range(QUICK):
                infer(client, made.name, "identity_fp32")
            os.ftruncate(descriptor, OBJECT_BYTES - PAGE)
        with pytest.raises(Refused):
            infer(client, made.name, "identity_fp32")
        with contextlib.closing(Region(PAGE)) as small:
            client.register_system(made.name, small.key, PAGE)
            infer(client, made.name, "identity_fp32")
        client.unregister("system", made.name)


def test_the_objects_of_a_client_that_goes(server):
    with nobody_waits(server):
        with any_client("session", server) as client, registered_page(client) as (made, _):
            infer(client, made.name, "identity_fp32")
            made.path.unlink()
            made.map.close()
