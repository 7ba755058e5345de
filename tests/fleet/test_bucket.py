"""Does a model repository come from a bucket whole, whatever happens on the way?

A small S3 server (``moto``) has the bucket, and a proxy before it interrupts. Needs ``python3 tests/fleet/setup_fleet.py``.
"""

import contextlib
import functools
import http.server
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import trustme
from buckets import PATIENCE_S, Bucket, Proxy, command, run, s3_server, started, sums
from clients import http_infer
from footprint import wait_until
from python_setup import PATIENT

import setup_fleet

pytestmark = pytest.mark.skipif(not setup_fleet.place().exists(), reason="python3 tests/fleet/setup_fleet.py")

MIB = 1 << 20
MODEL = {"m/config.pbtxt": b"first", "m/1/model.py": b"version one"}


@pytest.fixture(scope="module")
def port():
    with s3_server() as found:
        yield found


@pytest.fixture
def bucket(port: int) -> Bucket:
    made = Bucket(port, f"models-{uuid.uuid4().hex}")
    for key, value in MODEL.items():
        made.put(f"tree/{key}", value)
    return made


@pytest.fixture
def proxy(port: int):
    made = Proxy(port)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "models"


def content(folder: pathlib.Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and "..nerite-fetch" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def url(bucket: Bucket) -> str:
    return f"s3://{bucket.name}/tree"


def fetched_bytes(log: str) -> int:
    return int(re.search("([0-9]+) fetched", log)[1])


def test_a_tree_is_copied_once_and_followed(bucket: Bucket, folder: pathlib.Path) -> None:
    # A folder that a console made.
    bucket.put("tree/m/2/", b"")
    words = command(url(bucket), folder, endpoint=bucket.port)
    status, log = run(*words)
    assert status == 0 and "1 placed (m)" in log and "size alone" not in log
    assert content(folder) == MODEL
    assert run(*words) == (0, "")
    bucket.delete("tree/m/1/model.py")
    bucket.put("tree/m/2/model.py", b"version two")
    bucket.put("tree/n/1/model.py", b"another")
    status, log = run(*words)
    assert status == 0 and fetched_bytes(log) == len(b"version two" + b"another")
    assert content(folder) == {"m/config.pbtxt": b"first", "m/2/model.py": b"version two", "n/1/model.py": b"another"}
    bucket.delete("tree/n/1/model.py")
    status, log = run(*words)
    assert status == 0 and "1 removed (n)" in log and not (folder / "n").exists()


def test_an_upload_in_parts_has_its_sum_in_a_file(bucket: Bucket, folder: pathlib.Path) -> None:
    large = {"m/1/weights": os.urandom(6 * MIB)}
    bucket.put_parts("tree/m/1/weights", large["m/1/weights"][: 5 * MIB], large["m/1/weights"][5 * MIB :])
    words = command(url(bucket), folder, endpoint=bucket.port)
    status, log = run(*words)
    assert status == 0 and "1 checked by their size alone" in log and content(folder) == {**MODEL, **large}
    bucket.put("tree/SHA256SUMS", sums({**MODEL, "m/1/weights": b"other"}))
    status, log = run(*words)
    assert status == 1 and "object 'm/1/weights' has the sha256" in log and content(folder) == {**MODEL, **large}
    bucket.put("tree/SHA256SUMS", sums({**MODEL, **large}))
    status, log = run(*words)
    assert status == 0 and content(folder) == {**MODEL, **large, "SHA256SUMS": sums({**MODEL, **large})}


@pytest.mark.parametrize("end", ["cut", "kill"])
def test_an_interrupted_copy_is_resumed(bucket: Bucket, proxy: Proxy, folder: pathlib.Path, end: str) -> None:
    large = os.urandom(20 * MIB)
    bucket.put("tree/m/1/weights", large)
    words = command(url(bucket), folder, endpoint=proxy.port)
    proxy.fault("cut" if end == "cut" else "hold", 12 * MIB)
    if end == "cut":
        status, log = run(*words)
        assert status == 1 and "object 'm/1/weights' cannot be read" in log
    else:
        process = started(*words)
        assert proxy.reached.wait(PATIENCE_S)
        process.kill()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert content(folder) == {}
    proxy.go_on()
    status, log = run(*words)
    assert status == 0 and content(folder) == {**MODEL, "m/1/weights": large}
    # The first chunk of 8 MiB was there, and the model's code.
    assert 12 * MIB <= fetched_bytes(log) < 13 * MIB, log


def test_an_object_that_is_replaced_during_the_copy_is_refused(bucket: Bucket, proxy: Proxy, folder: pathlib.Path) -> None:
    old, new = os.urandom(20 * MIB), os.urandom(20 * MIB)
    bucket.put("tree/m/1/weights", old)
    words = command(url(bucket), folder, endpoint=proxy.port)
    proxy.fault("hold", 12 * MIB)
    process = started(*words)
    assert proxy.reached.wait(PATIENCE_S)
    bucket.put("tree/m/1/weights", new)
    proxy.go_on()
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and "object 'm/1/weights'" in log, log
    assert content(folder) == {}
    assert run(*words)[0] == 0 and content(folder) == {**MODEL, "m/1/weights": new}


def test_a_byte_that_changed_on_the_way_is_noticed(bucket: Bucket, proxy: Proxy, folder: pathlib.Path) -> None:
    large = os.urandom(20 * MIB)
    bucket.put("tree/m/1/weights", large)
    words = command(url(bucket), folder, endpoint=proxy.port)
    proxy.fault("change", 12 * MIB)
    status, log = run(*words)
    assert proxy.reached.is_set() and status == 1 and "object 'm/1/weights' has the md5" in log
    assert content(folder) == {}
    assert run(*words)[0] == 0 and content(folder) == {**MODEL, "m/1/weights": large}


@contextlib.contextmanager
def small_disk(place: pathlib.Path, size: int):
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_named_and_nothing_is_lost(bucket: Bucket, proxy: Proxy, tmp_path: pathlib.Path) -> None:
    large = os.urandom(20 * MIB)
    with small_disk(tmp_path / "disk", 24 * MIB) as folder:
        words = command(url(bucket), folder, endpoint=proxy.port)
        assert run(*words)[0] == 0
        bucket.put("tree/m/2/weights", large + large)
        status, log = run(*words)
        assert status == 1 and f"{40 * MIB} bytes are to be fetched, and the disk of {folder} has" in log
        # Somebody else fills the disk meanwhile.
        bucket.put("tree/m/2/weights", large)
        proxy.fault("hold", 4 * MIB)
        process = started(*words)
        assert proxy.reached.wait(PATIENCE_S)
        (folder / "other").write_bytes(bytes(10 * MIB))
        proxy.go_on()
        _, log = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1 and "No space left on device: free space" in log, log
        (folder / "other").unlink()
        assert content(folder) == MODEL
        status, log = run(*words)
        assert status == 0 and fetched_bytes(log) <= 12 * MIB and content(folder) == {**MODEL, "m/2/weights": large}


@pytest.mark.parametrize("key", ["%2E%2E/evil", "m//1/x", "m/1/", "/evil", "m", "M/1/x", "m/1/a%5Cb"])
def test_a_hostile_name_is_refused(bucket: Bucket, folder: pathlib.Path, key: str) -> None:
    words = command(url(bucket), folder, endpoint=bucket.port)
    assert run(*words)[0] == 0
    bucket.put(f"tree/{key}", b"evil")
    status, log = run(*words)
    assert status == 1 and "object" in log and "in the bucket" in log
    assert content(folder) == MODEL and list(folder.parent.glob("evil*")) == []


def test_a_store_that_does_not_answer_is_tried_again_until_the_end(bucket: Bucket, proxy: Proxy, folder: pathlib.Path) -> None:
    proxy.fault("cut")
    process = started(*command(url(bucket), folder, "--every=0.2", endpoint=proxy.port))
    try:
        assert "cannot be listed" in process.stderr.readline()
        proxy.go_on()
        wait_until(lambda: content(folder) == MODEL)
        bucket.put("tree/m/config.pbtxt", b"second")
        wait_until(lambda: content(folder)["m/config.pbtxt"] == b"second")
    finally:
        process.terminate()
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and "hunter2" not in log


LINKS = '<a href="../other">up</a><a href="https://127.0.0.1/x">away</a><a href="?C=N">name</a><a href="./">here</a>'


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and index pages, and no ranges."""

    def log_message(self, *_) -> None:
        pass


@contextlib.contextmanager
def site(root: pathlib.Path, scratch: pathlib.Path):
    """The address of a server with TLS, and the file of whom to trust."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(scratch / "ca.pem")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", {"SSL_CERT_FILE": str(scratch / "ca.pem")}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_site_with_index_pages_is_a_tree(tmp_path: pathlib.Path, folder: pathlib.Path) -> None:
    # More than a chunk, so that a second range is wanted.
    objects = {**MODEL, "m/1/weights 1": os.urandom(9 * MIB)}
    tree = tmp_path / "site/tree"
    for key, value in {**objects, "SHA256SUMS": sums(objects), "../other": b"other"}.items():
        (tree / key).parent.mkdir(parents=True, exist_ok=True)
        (tree / key).write_bytes(value)
    names = '<a href="m/">m</a><a href="SHA256SUMS">sums</a>'
    (tree / "index.html").write_text(LINKS + names)
    with site(tmp_path / "site", tmp_path) as (address, trust):
        words = command(f"{address}/tree", folder)
        status, log = run(*words, **trust)
        assert status == 0 and "size alone" not in log and content(folder) == {**objects, "SHA256SUMS": sums(objects)}
        assert run(*words, **trust) == (0, "")
        (tree / "m/1/model.py").write_bytes(b"version two, without its sum")
        status, log = run(*words, **trust)
        assert status == 1 and "object 'm/1/model.py' has the sha256" in log and content(folder)["m/1/model.py"] == MODEL["m/1/model.py"]
        (tree / "index.html").write_text(LINKS + names + '<a href="%2e%2e/other">other</a>')
        status, log = run(*words, **trust)
        assert status == 1 and "object '../other' has a part that begins with '..'" in log
        assert run(*words)[0] == 1, "nobody signed the certificate"


def test_a_folder_of_this_host_is_a_tree(tmp_path: pathlib.Path, folder: pathlib.Path) -> None:
    for key, value in MODEL.items():
        (tmp_path / "tree" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / key).write_bytes(value)
    status, log = run(*command(f"file://{tmp_path}/tree", folder))
    assert status == 0 and content(folder) == MODEL
    assert run(*command(f"file://{tmp_path}/tree/m/config.pbtxt", folder))[0] == 1


CONFIG = """\
backend: "python"
output { name: "OUT" data_type: TYPE_INT32 dims: 3 }
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
parameters { key: "generation" value { string_value: "%d" } }
"""
CODE = """\
import json
import pathlib

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        configured = json.loads(args["model_config"])["parameters"]["generation"]["string_value"]
        weights = pathlib.Path(__file__).with_name("weights").read_text()
        self.values = np.array([%d, int(configured), int(weights)], np.int32)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.values)]) for _ in requests]
"""


def generation(number: int, version: int) -> dict[str, bytes]:
    """A model whose code, configuration and weights contain their number."""
    made = {"m/config.pbtxt": CONFIG % number, f"m/{version}/model.py": CODE % number, f"m/{version}/weights": f"{number}{' ' * MIB}"}
    return {key: value.encode() for key, value in made.items()}


def test_a_server_that_polls_serves_no_mixture(launcher, bucket: Bucket, folder: pathlib.Path) -> None:
    def upload(objects: dict[str, bytes]) -> None:
        for key, value in objects.items():
            bucket.put(f"served/{key}", value)
        bucket.put("served/SHA256SUMS", sums(objects))

    answers, ended = [0], threading.Event()

    def send_requests() -> None:
        inputs = [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [0]}]
        while not ended.is_set():
            found = http_infer(server.http, "m", {"inputs": inputs})
            values = json.loads(found.ok().body)["outputs"][0]["data"]
            answers.append(values[0] if values == values[:1] * 3 else found.body)

    upload(generation(1, 1))
    words = command(f"s3://{bucket.name}/served", folder, endpoint=bucket.port)
    assert run(*words)[0] == 0
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1", PATIENT]
    copying = started(*words, "--every=0.1")
    threading.Thread(target=copying.stderr.read, daemon=True).start()
    with launcher.running("bucket", *flags, repository=folder) as server, ThreadPoolExecutor(1) as pool:
        client = pool.submit(send_requests)
        try:
            # First in place, with several on the way at once, and then as versions that come while the one before goes.
            for number, version in ((2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (7, 3)):
                upload(generation(number, version))
                if version > 1:
                    bucket.delete(f"served/m/{version - 1}/model.py")
                    bucket.delete(f"served/m/{version - 1}/weights")
                if number > 4:
                    wait_until(lambda wanted=number: answers[-1] == wanted or client.done())
        finally:
            ended.set()
            copying.terminate()
        client.result()
        assert "failed to load" not in server.log_text()
    assert copying.wait(PATIENCE_S) == 0
    numbers = answers[1:]
    assert numbers == sorted(numbers) and {1, 5, 6, 7} <= set(numbers) <= set(range(1, 8)), set(numbers)
