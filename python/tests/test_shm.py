"""Does a region outlive its arrays, and its name only its creator?"""

import errno
import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from nerite import shm
from nerite.shm import Region, RegionError, RegionInUse


def exists(key: str) -> bool:
    return os.path.exists(shm.path_of(key))


@pytest.fixture
def key():
    made = shm.fresh_key("nerite-test")
    yield made
    if exists(made):
        os.unlink(shm.path_of(made))


def test_what_one_writes_the_other_reads(key):
    with Region.create(key, 4096) as ours, Region.attach(key) as theirs:
        ours.write(np.arange(6, dtype=np.float32).reshape(2, 3), offset=64)
        seen = theirs.as_numpy([2, 3], "FP32", 64)
        assert seen.tolist() == [[0, 1, 2], [3, 4, 5]]
        seen[0, 0] = 9
        assert ours.as_numpy([6], "FP32", 64)[0] == 9
        del seen
    assert not exists(key)


def test_bytes_tensors_are_serialised_in_place(key):
    with Region.create(key, 4096) as region:
        tensor = np.array([[b"", b"a\0b"], ["é", 5]], dtype=np.object_)
        assert region.write(tensor, 10) == 4 * 4 + 0 + 3 + 2 + 1
        assert region.as_numpy([2, 2], "BYTES", 10).tolist() == [[b"", b"a\0b"], ["é".encode(), b"5"]]


def test_destroying_a_region_with_live_arrays_is_an_error(key):
    region = Region.create(key, 4096)
    array = region.as_numpy([4], "INT32")
    with pytest.raises(RegionInUse, match="live arrays"):
        region.destroy()
    array[:] = 3
    assert exists(key)
    del array
    region.destroy()
    region.destroy()
    assert not exists(key)
    with pytest.raises(RegionError, match="was destroyed"):
        region.as_numpy([1])


def test_an_abandoned_region_lives_as_long_as_its_arrays(key):
    region = Region.create(key, 4096)
    array = region.as_numpy([1024], "INT32")
    region.abandon()
    del region
    gc.collect()
    assert not exists(key)
    array[:] = 7
    assert array.sum() == 7 * 1024


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda r: r.as_numpy([1025], "INT32"), "has 4096 bytes, asked to reach 4100 from 0"),
        (lambda r: r.as_numpy([1], "INT32", 4093), "asked to reach 4097 from 4093"),
        (lambda r: r.as_numpy([1], "INT32", -4), "asked to reach 0 from -4"),
        (lambda r: r.write(np.zeros(5000, np.uint8)), "asked to reach 5000"),
        (lambda r: r.write(np.array([b"x" * 4093], dtype=object)), "asked to reach 4097"),
        (lambda r: r.as_numpy([1], "BYTES", -4), "asked to reach -4 from -4"),
        (lambda r: r.as_numpy([0], "BYTES", 4097), "asked to reach 4097 from 4097"),
        (lambda r: Region.create(r.key, 1), "File exists; attach to it, or take another key"),
        (lambda r: Region.create("/nerite-huge", 1 << 70), "of 1180591620717411303424 bytes: "),
        (lambda r: Region.create("/a/b", 1), "invalid shared memory key"),
        (lambda r: Region.create("//", 1), "invalid shared memory key"),
        (lambda r: Region.create("/nerite-none", 0), "at least 1 byte"),
        (lambda r: Region.create("/nerite-none", 1.5), "asked with 1.5 bytes, which is no whole number"),
        (lambda r: Region.create(None, 1), "invalid shared memory key None"),
        (lambda r: Region.attach("/nerite-absent"), "No such file.*; is its maker in another container"),
    ],
)
def test_mistakes_are_errors_that_say_what_is_wrong(key, call, text):
    with Region.create(key, 4096) as region:
        with pytest.raises(RegionError, match=text):
            call(region)


def test_a_bytes_length_beyond_the_region_is_an_error(key):
    with Region.create(key, 4096) as region:
        region.as_numpy([1], "UINT32")[0] = 5000
        with pytest.raises(Exception, match="element 0 of 1 says 5000 bytes, only 4092 are left"):
            region.as_numpy([1], "BYTES")


def test_more_than_the_file_system_has_is_an_error_and_leaves_nothing(key):
    with pytest.raises(RegionError, match="of 35184372088832 bytes: .* bytes free; .* make it larger|Cannot allocate"):
        Region.create(key, 1 << 45)
    assert not exists(key)


def test_the_error_of_an_object_of_another_user_names_both_users(key, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    with Region.create(key, 4096):
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(RegionError, match=rf"it is user {os.getuid()}'s with mode 0600, this is user {os.getuid()}; run both"):
            Region.attach(key)
        monkeypatch.undo()


def test_an_object_without_bytes_is_an_error(key):
    os.close(os.open(f"/dev/shm{key}", os.O_CREAT | os.O_RDWR))
    with pytest.raises(RegionError, match="has 0 bytes; attach when its maker"):
        Region.attach(key)
    os.unlink(f"/dev/shm{key}")


def test_an_error_in_the_block_of_a_region_is_the_one_that_is_seen(key):
    with pytest.raises(ZeroDivisionError), Region.create(key, 4096) as region:
        array = region.as_numpy([4096])
        1 / 0  # noqa: B018
    assert not exists(key)
    array[:] = 1


def test_a_process_that_attached_never_unlinks(key):
    with Region.create(key, 4096) as region:
        code = (
            f"from nerite.shm import Region; r = Region.attach('{key}'); r.as_numpy([1])[0] = 42; "
            f"s = Region.attach('{key}'); s.destroy()"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert exists(key)
        assert region.as_numpy([1])[0] == 42


def test_a_process_that_created_unlinks_at_its_end(key):
    code = f"from nerite.shm import Region; r = Region.create('{key}', 10); a = r.as_numpy([1])"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not exists(key)


def test_a_forked_child_never_unlinks(key):
    with Region.create(key, 4096) as region:
        child = os.fork()
        if child == 0:
            region.abandon()
            del region
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert exists(key)


def test_a_name_that_another_process_took_over_is_left_alone(key):
    region = Region.create(key, 4096)
    os.unlink(shm.path_of(key))
    with Region.create(key, 4096):
        region.destroy()
        assert exists(key)


def test_tritonclients_functions_take_a_region_as_their_handle(key):
    from nerite.testing.shm_util import SystemHandle
    from tritonclient.utils import shared_memory

    handle = SystemHandle("any", 64)
    shared_memory.set_shared_memory_region(handle, [np.arange(16, dtype=np.int32)])
    assert shared_memory.get_contents_as_numpy(handle, np.int32, [16]).sum() == 120
    assert handle.as_numpy([16], "INT32")[3] == 3
    handle.region.abandon()
