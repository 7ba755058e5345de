"""Does a folder change from one state of a bucket to the next, with no mixture and with nothing left behind?"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bucket_store import Store, content, staged

from nerite.fleet import _bucket_folder
from nerite.fleet._bucket_plan import BucketError

HERE = Path(__file__).resolve().parent
MODEL = {"m/config.pbtxt": "first", "m/1/model.py": "version one"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def store() -> Store:
    made = Store()
    for key, value in MODEL.items():
        made.put(key, value)
    return made


def test_a_copy_killed_at_any_step_leaves_whole_models(folder: Path) -> None:
    done = subprocess.run([sys.executable, HERE / "bucket_kills.py", folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(int(steps) > 30 for steps in done.stdout.split()), done.stdout


def test_what_did_not_change_keeps_its_file(store: Store, folder: Path) -> None:
    store.copy_to(folder)
    before = (folder / "m/1/model.py").stat()
    assert store.copy_to(folder).placed == []
    store.put("m/2/model.py", "version two")
    store.reads.clear()
    done = store.copy_to(folder)
    after = (folder / "m/1/model.py").stat()
    assert store.reads == [("m/2/model.py", 0)] and done.placed == ["m"]
    assert (before.st_ino, before.st_mtime_ns, before.st_size) == (after.st_ino, after.st_mtime_ns, after.st_size)


def test_a_lost_connection_is_resumed(store: Store, folder: Path) -> None:
    store.chunks_left = 2
    with pytest.raises(BucketError, match="the connection was lost"):
        store.copy_to(folder)
    assert content(folder) == {}
    store.chunks_left = None
    store.reads.clear()
    done = store.copy_to(folder)
    assert store.reads == [("m/1/model.py", 8), ("m/config.pbtxt", 0)]
    assert done.resumed == 1 and content(folder) == MODEL


def test_a_part_of_an_object_that_changed_is_not_used(store: Store, folder: Path) -> None:
    store.chunks_left = 2
    with pytest.raises(BucketError):
        store.copy_to(folder)
    store.chunks_left = None
    store.put("m/1/model.py", "another one")
    store.copy_to(folder)
    assert (folder / "m/1/model.py").read_text() == "another one"
    assert staged(folder, "partial") == []


@pytest.mark.parametrize("has_sums", [True, False])
def test_an_object_that_is_replaced_during_the_copy_is_refused(store: Store, folder: Path, has_sums: bool) -> None:
    store.has_sums = has_sums
    store.copy_to(folder)
    store.put("m/2/model.py", "version two")
    store.before_chunk = lambda key: store.put(key, "VERSION TWO")
    with pytest.raises(BucketError, match="'m/2/model.py' was replaced while it was copied"):
        store.copy_to(folder)
    assert content(folder) == MODEL
    store.copy_to(folder)
    assert content(folder)["m/2/model.py"] == "VERSION TWO"


@pytest.mark.parametrize("value", ["shorter", "longer than it was"])
def test_an_object_of_another_length_is_refused(store: Store, folder: Path, value: str) -> None:
    listed = store.listed()
    store.put("m/1/model.py", value)
    store.listed = lambda: listed
    store.look = lambda remote: remote
    with pytest.raises(BucketError, match="'m/1/model.py' has 11 bytes, and [0-9]+ came"):
        store.copy_to(folder)
    assert content(folder) == {}


def test_a_wrong_sum_is_refused_and_fetched_anew(store: Store, folder: Path) -> None:
    good = dict(store.objects)
    store.put("SHA256SUMS", "".join(f"{'0' * 64}  {key}\n" for key in good))
    with pytest.raises(BucketError, match="'m/1/model.py' has the sha256 [0-9a-f]{64}, and should have 0{64}"):
        store.copy_to(folder)
    assert content(folder) == {} and staged(folder, "partial") == []


@pytest.mark.parametrize("key", ["m/1/model.py", "SHA256SUMS"])
def test_a_file_that_was_cut_short_is_fetched_anew(store: Store, folder: Path, key: str) -> None:
    store.put("SHA256SUMS", "".join(f"{hashlib.sha256(value).hexdigest()}  {key}\n" for key, value in store.objects.items()))
    store.copy_to(folder)
    before = content(folder)
    os.truncate(folder / key, 3)
    store.copy_to(folder)
    assert content(folder) == before


def test_files_of_others_beside_a_model_stay_until_it_changes(store: Store, folder: Path) -> None:
    store.copy_to(folder)
    for name in ("__pycache__", "own"):
        (folder / "m/1" / name).mkdir()
        (folder / "m/1" / name / "x").write_text("x")
    (folder / "own").mkdir()
    assert store.copy_to(folder).placed == []
    store.put("m/config.pbtxt", "second")
    store.copy_to(folder)
    assert content(folder) == {**MODEL, "m/config.pbtxt": "second"} and (folder / "own").is_dir()


def test_a_model_that_no_copy_made_is_not_replaced(store: Store, folder: Path) -> None:
    (folder / "m").mkdir(parents=True)
    (folder / "m/config.pbtxt").write_text("own")
    with pytest.raises(BucketError, match="'m', which no copy put there"):
        store.copy_to(folder)
    assert content(folder) == {"m/config.pbtxt": "own"}


@pytest.mark.parametrize("place", ["m", "..nerite-fetch", "..nerite-fetch/objects"])
def test_a_link_in_the_folder_is_refused(store: Store, folder: Path, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / place).parent.mkdir(parents=True)
    (folder / place).symlink_to(elsewhere)
    with pytest.raises(BucketError, match="remove it"):
        store.copy_to(folder)
    assert list(elsewhere.iterdir()) == []


def test_a_link_below_a_model_is_not_followed(store: Store, folder: Path, tmp_path: Path) -> None:
    store.copy_to(folder)
    elsewhere = tmp_path / "elsewhere"
    (folder / "m/1").rename(elsewhere)
    (folder / "m/1").symlink_to(elsewhere)
    store.copy_to(folder)
    assert not (folder / "m/1").is_symlink() and content(folder) == MODEL
    assert [path.name for path in elsewhere.iterdir()] == ["model.py"]


def test_a_second_process_is_refused(store: Store, folder: Path) -> None:
    store.copy_to(folder)
    with open(folder / "..nerite-fetch/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BucketError, match="another process copies into"):
            store.copy_to(folder)
    store.copy_to(folder)


def test_a_bucket_without_objects_removes_nothing(store: Store, folder: Path) -> None:
    store.copy_to(folder)
    store.objects.clear()
    with pytest.raises(BucketError, match="s3://bucket: there are no objects"):
        store.copy_to(folder)
    assert content(folder) == MODEL


def test_a_disk_that_is_too_small_is_found_before_anything_is_fetched(store: Store, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(_bucket_folder.Folder, "free_bytes", lambda self: 15)
    with pytest.raises(BucketError, match="16 bytes are to be fetched, and the disk of .* has 15 free"):
        store.copy_to(folder)
    assert store.reads == []


def test_a_file_system_without_an_exchange_is_named(store: Store, folder: Path, monkeypatch) -> None:
    store.copy_to(folder)
    store.put("m/config.pbtxt", "second")
    monkeypatch.setattr(_bucket_folder, "RENAME_EXCHANGE", 1 << 20)
    with pytest.raises(BucketError, match="Invalid argument: use a folder on ext4"):
        store.copy_to(folder)
    assert content(folder) == MODEL
