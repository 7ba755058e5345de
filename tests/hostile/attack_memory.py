"""Which attacks use shared memory, by regions and by leases?"""

import contextlib
import http.client
import json
import os
import random
import struct
import time

from attack_messages import grpc_client
from attack_table import DEFENCE, attack, close_after, crowd, post
from clients import Given, GrpcClient, HttpClient, Refused, RequestedOutput
from holding import get_unread
from region_faults import LIES, Meanwhile, punch_hole
from packets import open_session, welcomed
from passages import SIZE, through
from regions import Region

PAGE = os.sysconf("SC_PAGESIZE")
ROUNDS = 50
REGIONS = 3000
LONG_NAMES, NAME_BYTES_MAX = 2000, 1024
OBJECTS = "nerite_test_attack_"


@contextlib.contextmanager
def own_region(client, byte_size: int, content: bytes = b""):
    """A registered region. Its object's name says which process made it, which may be killed."""
    made = Region(byte_size, content, key=f"/{OBJECTS}{os.getpid()}_{random.getrandbits(48):x}")
    made.name = made.key[1:]
    try:
        client.register_system(made.name, made.key, byte_size)
        yield made
        client.unregister("system", made.name)
    finally:
        made.close()


def meanwhile_through(server, action) -> None:
    """`action(region)` again and again while a model copies the region to itself."""
    client = grpc_client(server.grpc)
    with own_region(client, SIZE, b"\x11" * SIZE) as made, Meanwhile(lambda: action(made)):
        for _ in range(ROUNDS):
            with contextlib.suppress(Refused):
                through(client, made, made)
            with contextlib.suppress(Refused):
                client.register_system(made.name, made.key, SIZE)


@attack
def regions_that_shrink_and_grow(server):
    """a region that is cut short and grows while it is read and written"""

    def breathe(made) -> None:
        for size in (0, SIZE // 2 + 100, 8 * SIZE, SIZE):
            os.truncate(made.path, size)

    meanwhile_through(server, breathe)


@attack
def regions_with_holes(server):
    """holes that are punched into a region while it is read and written"""
    meanwhile_through(server, lambda made: punch_hole(made.path, PAGE, SIZE // 2))


@attack
def regions_that_are_scribbled_on(server):
    """a region that changes while models read it, as numbers and as strings with lying lengths"""
    client, chance = grpc_client(server.grpc), random.Random()

    def scribble(made) -> None:
        made.write(struct.pack("<I", chance.choice([0, 4, 4, *LIES])), 8 * chance.randrange(64))
        made.write(bytes([chance.randrange(64)]) * (SIZE // 4), SIZE // 2)

    with own_region(client, SIZE, (struct.pack("<I", 4) + b"abcd") * 64) as made, Meanwhile(lambda: scribble(made)):
        for _ in range(ROUNDS):
            with contextlib.suppress(Refused):
                client.infer("identity_bytes", [Given("INPUT0", "BYTES", [64], region=(made.name, 512, 0))])
            inputs = [Given(f"INPUT{n}", "INT32", [1, 16], region=(made.name, 64, SIZE // 2 + n * 64)) for n in range(2)]
            with contextlib.suppress(Refused):
                client.infer("simple", inputs, [RequestedOutput("OUTPUT0", (made.name, 64, 1024)), RequestedOutput("OUTPUT1")])


@attack
def regions_without_end(server):
    """three thousand registrations of one object, its loss, and the end of all of them"""
    client = HttpClient(server.http)
    with own_region(client, 4 * PAGE) as made, contextlib.closing(http.client.HTTPConnection(server.http)) as calls:

        def call(number: int, verb: str, document) -> int:
            calls.request("POST", f"/v2/systemsharedmemory/region/{made.name}_{number}/{verb}", json.dumps(document))
            answer = calls.getresponse()
            answer.read()
            return answer.status

        number = 0
        while number < REGIONS and call(number, "register", {"key": made.key, "byte_size": PAGE}) == 200:
            number += 1
        os.truncate(made.path, 0)
        for lost in range(0, number, 10):
            with contextlib.suppress(Refused):
                client.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=(f"{made.name}_{lost}", 4, 0))])
        calls.request("POST", "/v2/systemsharedmemory/unregister", "{}")
        calls.getresponse().read()


@attack
def names_of_regions(server):
    """two thousand regions with the longest names, whose status many ask for and nobody reads"""
    with contextlib.ExitStack() as held, contextlib.closing(http.client.HTTPConnection(server.http)) as calls:
        made = held.enter_context(own_region(HttpClient(server.http), PAGE))
        for number in range(LONG_NAMES):
            name = f"{made.name}_{number}_".ljust(NAME_BYTES_MAX, "n")
            calls.request("POST", f"/v2/systemsharedmemory/region/{name}/register", json.dumps({"key": made.key, "byte_size": PAGE}))
            calls.getresponse().read()
        held.callback(lambda: post(server, "/v2/systemsharedmemory/unregister", "{}"))
        close_after(1, [get_unread(server, "/v2/systemsharedmemory/status") for _ in range(20)])


@attack
def regions_that_are_huge_on_paper(server):
    """regions of 256 GiB without a page of memory"""
    client = grpc_client(server.grpc)
    with own_region(client, PAGE) as made:
        os.truncate(made.path, 1 << 38)
        for number in range(20):
            with contextlib.suppress(Refused):
                name = f"{made.name}_{number}"
                client.register_system(name, made.key, 1 << 38)
                client.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=(name, 4, (1 << 38) - 4))])
        os.truncate(made.path, PAGE)
        client.unregister("system")
        client.register_system(made.name, made.key, PAGE)


def borrow_all(path):
    """A session that has all the memory it may have, written to its last page."""
    client = open_session(path).__enter__()
    with contextlib.suppress(Refused):
        while True:
            client.borrow(1 << 20).write(b"\x55" * (1 << 20))
    return client


@attack
def leases_whose_session_vanishes(server):
    """eight sessions that borrow all they may have, and are killed"""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(*DEFENCE):
            held = [borrow_all(server.session) for _ in range(8)]
            request = grpc_request(next(iter(held[0].leases)))
            for _ in range(20):
                held[0].raw.call(1_000_000 + random.getrandbits(30), infer={"request": request})
        os._exit(0)
    os.waitpid(child, 0)


def grpc_request(lease: str) -> bytes:
    """An inference from a lease to itself."""
    given = Given("INPUT0", "FP32", [1 << 17], region=(lease, 1 << 19, 0))
    return GrpcClient.request(None, "delayed", [given], [RequestedOutput("OUTPUT0", (lease, 1 << 19, 1 << 19))]).SerializeToString()


@attack
def leases_that_nobody_takes(server):
    """memory that is lent and whose descriptors are never received"""
    for _ in range(20):
        with contextlib.suppress(*DEFENCE), welcomed(server.session) as raw:
            raw.socket.settimeout(1)
            for id in range(2, 130):
                raw.call(id, borrow={"byte_size": PAGE})
            time.sleep(0.01)
            # A packet whose descriptors there is no room for.
            raw.socket.recv(1 << 17)


@attack
def names_of_leases(server):
    """thousands of names of leases that were never lent"""
    chance = random.Random()
    with open_session(server.session) as client:
        for _ in range(10):
            with contextlib.suppress(Refused):
                client.call(returned=[f"lease-{chance.getrandbits(128):032x}" for _ in range(2000)])

    def guess(_) -> None:
        where = (f"lease-{chance.getrandbits(128):032x}", 4, 0)
        HttpClient(server.http).infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=where)])

    crowd(50, guess)
