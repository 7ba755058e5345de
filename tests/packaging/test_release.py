"""Does a release hold what users install, and is it the same each time?"""

import datetime
import gzip
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import urllib.request

import containers
import pytest
import servers
import setup_containers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DIST = ROOT / "target" / "dist"

pytestmark = pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not on the path")


def release(binary: pathlib.Path) -> dict[str, str]:
    """Makes a release of the program and returns the checksums of its files."""
    subprocess.run(["cargo", "xtask", "release", "--binary", binary], cwd=ROOT, check=True, env={**os.environ, "CARGO_INCREMENTAL": "0"})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in DIST.iterdir()}


@pytest.fixture(scope="module")
def made(stripped) -> dict[str, str]:
    return release(stripped)


def test_the_same_program_gives_the_same_bytes(made, stripped):
    assert release(stripped) == made


def test_checksums_hold_and_name_every_file(made):
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=DIST, check=True)
    named = {line.split()[1] for line in (DIST / "SHA256SUMS").read_text().splitlines()}
    assert named == set(made) - {"SHA256SUMS"}
    assert {re.sub(r"-\d.*", "", name) for name in named} >= {"nerite", "nerite_client"}


def test_the_bill_of_materials_is_that_of_this_commit(made):
    (place,) = DIST.glob("nerite-*.cdx.json")
    (archive,) = DIST.glob("nerite-*.tar.gz")
    assert place.name.removesuffix(".cdx.json") == archive.name.removesuffix(".tar.gz")
    bill = json.loads(place.read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["version"] == archive.name.split("-")[1]
    written = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert datetime.datetime.fromisoformat(bill["metadata"]["timestamp"]).timestamp() == int(written)


def test_the_tarball_runs_where_it_is_unpacked(made, tmp_path):
    (archive,) = DIST.glob("nerite-*.tar.gz")
    with tarfile.open(archive) as opened:
        assert {(one.uid, one.gid) for one in opened} == {(0, 0)}
        assert not [one.name for one in opened if one.isfile() and one.mode & 0o022]
        opened.extractall(tmp_path, filter="data")
    (top,) = tmp_path.iterdir()
    version = top.name.split("-")[1]
    assert top.name == f"nerite-{version}-{platform.machine()}-linux"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    printed = subprocess.run([top / "bin" / "nerite", "version"], capture_output=True, text=True, env=clean)
    assert printed.stdout == f"nerite {version}\n"
    assert (top / "share" / "nerite" / "examples" / "models" / "digits" / "config.pbtxt").is_file()
    # What the units and pages name is there.
    for path in ("lib/systemd/system/nerite.service", "lib/sysusers.d/nerite.conf", "share/nerite/nerite.toml", "share/man/man1/nerite.1"):
        assert (top / path).stat().st_size > 0, path
    # docs/ is not.
    assert "The pages that this text links to are not in this package." in (top / "share" / "doc" / "nerite" / "README.md").read_text()


# An image is at most this large. Its base, glibc and libgcc without a shell, has less than 26 MB unpacked.
IMAGE_BYTES_MAX = 60_000_000
BASE_BYTES = 26_000_000


def test_what_goes_into_the_image_keeps_it_small(made, program):
    """What the stage `server` of the Dockerfile copies. The base is a number here, because there may be no container engine."""
    text = (ROOT / "packaging" / "container" / "Dockerfile").read_text()
    server = text.partition("cc-debian12:nonroot AS server")[2]
    copied = re.findall(r"^COPY --from=unpacked /opt/nerite/(\S+) ", server, re.M)
    assert copied == ["bin/nerite", "share/nerite"]
    sources = [ROOT / "target" / "package" / one for one in copied]
    files = [file for source in sources for file in ([source] if source.is_file() else source.rglob("*")) if file.is_file()]
    total = BASE_BYTES + sum(file.stat().st_size for file in files)
    if "debug" in program.parts:
        pytest.skip("a development build is larger than what users get")
    assert total <= IMAGE_BYTES_MAX, f"{total} bytes, {IMAGE_BYTES_MAX} are allowed"


@pytest.fixture(scope="module")
def engine() -> None:
    """Skips the tests of containers where none can run."""
    if reason := setup_containers.why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def server_image(engine, made) -> str:
    return containers.build("server", DIST)


# The stages of these install packages, so they are skipped without a registry. That of the server is not.
@pytest.fixture(scope="module")
def client_image(engine, made) -> str:
    return containers.build("client", DIST)


@pytest.fixture(scope="module")
def python_image(engine, made) -> str:
    return containers.build("python", DIST)


@pytest.fixture(scope="module")
def onnxruntime_image(engine, made) -> str:
    return containers.build("onnxruntime", DIST)


@pytest.fixture
def composition(server_image):
    made = containers.Composition({"server": server_image}, dict(zip(("8000", "8001", "8002"), map(str, servers.free_ports(3)))))
    yield made
    made.close()


def test_the_image_is_small_and_runs_as_a_plain_user(server_image, program):
    facts = containers.inspected(server_image, "image")
    assert facts["User"] == "65532:65532"
    if "debug" in program.parts:
        pytest.skip("a development build is larger than what users get")
    assert facts["Size"] <= IMAGE_BYTES_MAX, f"{facts['Size']} bytes, {IMAGE_BYTES_MAX} are allowed"


def test_the_image_is_healthy_while_it_serves_and_stops_when_told(composition):
    started = composition.run("server", "--detach")
    assert started.returncode == 0, started.stderr
    composition.wait_until_healthy("server")
    with urllib.request.urlopen(f"http://127.0.0.1:{composition.ports['8000']}/v2/models/digits", timeout=30) as answer:
        assert json.load(answer)["name"] == "digits"
    assert containers.podman("top", "nerite-test-server", "huser").stdout.split()[1:] == ["65532"]
    containers.podman("stop", "--time=30", "nerite-test-server", check=True)
    assert containers.inspected("nerite-test-server", "container")["State"]["ExitCode"] == 0


def test_the_health_check_fails_where_no_server_answers(composition):
    started = composition.run("server", "--detach", command=["serve", "--http-port=8100"])
    assert started.returncode == 0, started.stderr
    # A server that has not started yet would fail it as well.
    composition.wait_until_ready("server", "http://127.0.0.1:8100")
    done = containers.podman("healthcheck", "run", "nerite-test-server")
    assert done.returncode != 0
    assert containers.inspected("nerite-test-server", "container")["State"]["Running"] is True


def test_two_containers_share_memory_by_the_session_socket_alone(composition, client_image):
    """What compose.yaml says, with the client's own program: no common IPC namespace, no common /dev/shm, and no network."""
    composition.images["client"] = client_image
    started = composition.run("server", "--detach")
    assert started.returncode == 0, started.stderr
    composition.wait_until_healthy("server")
    done = composition.run("client")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "session (1, 10)"
    for name in ("server", "client"):
        host_config = containers.inspected(f"nerite-test-{name}", "container")["HostConfig"]
        assert host_config["IpcMode"] != "host" and host_config["ReadonlyRootfs"] and host_config["CapDrop"]


def test_the_image_with_a_python_is_healthy(composition, python_image):
    composition.images["server"] = python_image
    command = ["serve", *(f"--model-repository=/usr/share/nerite/examples/{one}" for one in ("models", "pipeline"))]
    started = composition.run("server", "--detach", f"--volume={ROOT / 'examples'}:/usr/share/nerite/examples:ro", command=command)
    assert started.returncode == 0, started.stderr
    composition.wait_until_healthy("server")


def test_the_image_with_onnx_runtime_finds_it(onnxruntime_image):
    done = containers.podman("run", "--rm", "--network=none", onnxruntime_image, "doctor", "onnx", "--json")
    (check,) = json.loads(done.stdout)["checks"]
    assert check["verdict"] == "good" and "ONNX Runtime" in check["found"], check


def test_the_tarball_has_the_library_for_programs(made, stripped, tmp_path):
    """`cargo xtask release` has looked at its name and functions, and has run a program in C with it."""
    if not stripped.with_name("libtritonserver.so").exists():
        pytest.skip("libtritonserver.so is not built (cargo build -p nerite-inprocess)")
    (archive,) = DIST.glob("nerite-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (library,) = tmp_path.glob("*/lib/nerite/libtritonserver.so")
    assert library.read_bytes() == stripped.with_name("libtritonserver.so").read_bytes()
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    assert "SONAME" in dynamic and "[libtritonserver.so]" in dynamic
    # It needs nothing but what each system has.
    needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", dynamic))
    assert needed <= {"libc", "libm", "libgcc_s", "libdl", "libpthread", "librt", "ld-linux-x86-64", "ld-linux-aarch64"}, needed


def test_the_debian_package_has_the_service_and_its_user(made, tmp_path):
    found = list(DIST.glob("*.deb"))
    if not found or shutil.which("dpkg-deb") is None:
        pytest.skip("cargo-deb or dpkg-deb is not installed")
    subprocess.run(["dpkg-deb", "-R", found[0], tmp_path / "unpacked"], check=True)
    top = tmp_path / "unpacked"
    for unit, path in (("nerite.service", "lib/systemd/system/nerite.service"), ("nerite.sysusers", "lib/sysusers.d/nerite.conf")):
        assert (top / "usr" / path).read_bytes() == (ROOT / "packaging" / "systemd" / unit).read_bytes()
    assert "systemd-sysusers" in (top / "DEBIAN" / "postinst").read_text()
    assert (top / "DEBIAN" / "conffiles").read_text().split() == ["/etc/nerite/nerite.toml"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    demo = subprocess.run([top / "usr" / "bin" / "nerite", "demo", "--exit"], capture_output=True, text=True, cwd=tmp_path, env=clean, timeout=240)
    assert demo.returncode == 0 and str(top) in demo.stdout, demo.stderr


# Where Debian has it elsewhere than below /usr, or packs it.
MOVED = {
    "share/nerite/nerite.toml": "etc/nerite/nerite.toml",
    "share/zsh/site-functions/_nerite": "usr/share/zsh/vendor-completions/_nerite",
    "share/man/man1/nerite.1": "usr/share/man/man1/nerite.1.gz",
}
# docs/in-process.md says that the Debian package has not the library.
TARBALL_ONLY = {"lib/nerite/libtritonserver.so"}


def test_the_debian_package_has_what_the_tarball_has(made, tmp_path):
    found = list(DIST.glob("*.deb"))
    if not found or shutil.which("dpkg-deb") is None:
        pytest.skip("cargo-deb or dpkg-deb is not installed")
    subprocess.run(["dpkg-deb", "-x", found[0], tmp_path], check=True)
    stage = ROOT / "target" / "package"
    staged = {path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file()} - TARBALL_ONLY
    expected = {MOVED.get(name, f"usr/{name}"): stage / name for name in staged}
    packed = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert packed == {*expected, "usr/share/doc/nerite/copyright"}
    for name, source in expected.items():
        content = (tmp_path / name).read_bytes()
        assert (gzip.decompress(content) if name.endswith(".gz") else content) == source.read_bytes(), name
    fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", subprocess.run(["dpkg-deb", "-f", found[0]], capture_output=True, text=True, check=True).stdout, re.M))
    (archive,) = DIST.glob("nerite-*.tar.gz")
    assert (fields["Package"], fields["Version"].rpartition("-")[0]) == ("nerite", archive.name.split("-")[1])
    assert fields["Depends"].startswith("libc6 (>= ")


def test_the_manual_page_has_no_faults_of_form(made):
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    page = ROOT / "target" / "package" / "share" / "man" / "man1" / "nerite.1"
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], capture_output=True, text=True, env={**os.environ, "MANWIDTH": "120"})
    assert done.returncode == 0 and done.stderr == ""
    assert "--model-repository=string" in done.stdout


COMPLETE = """
source {script}
words=({words})
COMP_WORDS=("${{words[@]}}" {last!r})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_nerite
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "last", "expect"),
    [
        ("nerite", "se", {"serve"}),
        ("nerite serve", "--http-po", {"--http-port"}),
        ("nerite serve --strict-readiness =", "t", {"true"}),
        ("nerite serve --model-control-mode", "ex", {"explicit"}),
        ("tritonserver", "--grpc-po", {"--grpc-port"}),
        ("nerite shm", "d", {"drop"}),
        ("nerite config", "", {"check", "show", "--models", "--no-files", "--config", "--help"}),
    ],
)
def test_bash_completes(made, words, last, expect):
    script = ROOT / "target" / "package" / "share" / "bash-completion" / "completions" / "nerite"
    code = COMPLETE.format(script=script, words=words, last=last)
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert done.stderr == "" and set(done.stdout.split()) == expect


# A program for another machine, with its library beside it.
FOREIGN = ROOT / "target" / "aarch64-unknown-linux-gnu" / "debug" / "nerite"


@pytest.mark.skipif(not FOREIGN.exists() or not shutil.which("qemu-aarch64"), reason="`cargo xtask aarch64` makes the program, and Debian's qemu-user runs it")
def test_packages_for_aarch64_are_made_on_another_machine(made):
    """The last test of the file, because it replaces the packages."""
    command = ["cargo", "xtask", "release", "--target", "aarch64-unknown-linux-gnu", "--binary", FOREIGN]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_INCREMENTAL": "0"})
    names = {path.name for path in DIST.iterdir()}
    version = next(name for name in names if name.endswith("-aarch64-linux.tar.gz")).split("-")[1]
    assert f"nerite-{version}-aarch64-linux.cdx.json" in names
    assert any(re.fullmatch(rf"nerite-{version}-py3-none-manylinux_2_\d+_aarch64\.whl", name) for name in names)
    if packages := list(DIST.glob("*.deb")):
        architecture = subprocess.run(["dpkg-deb", "-f", packages[0], "Architecture"], capture_output=True, text=True, check=True).stdout
        assert architecture.strip() == "arm64"
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=DIST, check=True)


def test_a_library_that_is_none_makes_no_release(stripped, tmp_path):
    """The last test of this file: the packages of the others are gone then."""
    for path, name in ((stripped, "nerite"), (stripped, "libtritonserver.so")):
        shutil.copy2(path, tmp_path / name)
    done = subprocess.run(["cargo", "xtask", "release", "--binary", tmp_path / "nerite"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "its SONAME is not libtritonserver.so" in done.stderr
