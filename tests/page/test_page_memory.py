"""Who sees which shared memory on the page?"""

import contextlib
import os
import pathlib

import numpy as np
import pytest
from browsers import home_of, opened
from clients import open_client
from hands import Hands
from packets import open_session
from regions import Region
from users import as_user

ALICE, BOB = 65101, 65102


@pytest.fixture(autouse=True)
def only_root_can_be_somebody_else():
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")


@contextlib.contextmanager
def alices_region(server):
    """A region that Alice registered over HTTP."""
    path = pathlib.Path("/dev/shm") / f"nerite-page-{os.getpid()}"
    path.write_bytes(np.zeros(16, np.float32).tobytes())
    os.chown(path, ALICE, ALICE)

    def call(act) -> None:
        with open_client("http", server) as client:
            act(client)

    try:
        as_user(ALICE, lambda: call(lambda client: client.register_system("alices_frames", f"/{path.name}", 64)))
        yield path
        as_user(ALICE, lambda: call(lambda client: client.unregister("system", "alices_frames")))
    finally:
        path.unlink(missing_ok=True)


def test_the_operator_sees_who_holds_what_and_what_is_stale(page):
    with alices_region(page.server) as path, open_session(page.server.session) as session:
        lease = session.borrow(1 << 20)
        page.press("Memory", "nav")
        page.sees("main table", "alices_frames")
        page.sees("main table", f"user {ALICE}")
        page.sees("main table", f"({os.getpid()})")
        page.sees("main table", "1.0 MiB")
        page.take_picture("memory")
        # The beginning of a lease's name is shown. Whoever has all of it may use the lease.
        assert lease.name not in page.text("main") and lease.name[:8] in page.text("main")
        path.unlink()
        page.sees("main table", "key unlinked")
        page.click('main input[type="checkbox"]')
        page.sees("main table", "stale")
        page.take_picture("memory_stale")


def test_a_stranger_sees_no_names_of_others(shown, pictures, tmp_path):
    own = Region(64)
    os.chown(own.path, BOB, BOB)

    def register() -> None:
        with open_client("http", shown) as client:
            client.register_system("bobs_frames", own.key, 64)

    try:
        as_user(BOB, register)
        with alices_region(shown), open_session(shown.session) as session, opened(user=BOB, home=home_of(BOB, tmp_path)) as driver:
            session.borrow(1 << 20)
            page = Hands(driver, shown, pictures)
            page.open("/#/memory")
            page.sees("main table", "bobs_frames")
            page.sees("#visitor", f"user {BOB}")
            page.sees("main .hint", "No session is open.")
            text = page.text("body")
            assert "alices_frames" not in text and f"user {ALICE}" not in text and "lease-" not in text
            report = page.json("/ui/api/memory")
            assert [region["name"] for region in report["regions"]] == ["bobs_frames"]
            assert report["sessions"] == report["leases"] == [] and "pools" not in report
            page.take_picture("stranger")
            assert page.complaints() == []
    finally:
        own.close()
