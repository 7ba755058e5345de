"""Do Python models run in a sandbox as they do without one, and who decides what is in it?"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import servers
from clients import Given, Refused, fp32, int32, open_client, text
from python_catalogue import parameters, put, python, tensors, vector
from python_setup import PATIENT, SANDBOX, kernel_refuses, said, serving, strings

pytestmark = pytest.mark.skipif("kernel_refuses()", reason="the kernel confines nothing here")

COUNT = 1000


@pytest.fixture(autouse=True)
def only_here(launcher):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 has no sandbox")


def calling_model(name: str, **more: str):
    return python(name, "asking", tensors(CODE="BYTES"), tensors(SAID="BYTES"), extra=parameters(**more))


def run_code(client, model: str, code: str) -> str:
    return strings(client.infer(model, [text("CODE", [code.encode()])]).outputs["SAID"].raw)[0]


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no sandbox")
    models = ("py_identity", "py_types", "py_add_sub", "py_asking", "py_decoupled", "py_actions", "py_dlpack", "py_coroutine", "py_large", "py_auto")
    with serving(launcher, "python_sandboxed", *models, flags=SANDBOX, with_too=("chain", "identity_fp32")) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server):
    with open_client(request.param, server) as found:
        yield found


def test_the_log_says_what_holds_each_model(server):
    line = "model 'py_identity' is confined: files and tracing (Landlock ABI "
    found = next(one for one in server.log_text().splitlines() if line in one)
    for part in ("signals (", "no sockets (seccomp)", "no other process (seccomp)", "memory of 1073741824 bytes", "no capabilities"):
        assert part in found, found
    assert "but without" not in server.log_text()


def test_tensors_of_any_size(client):
    for count in (0, 1, COUNT, 1 << 22):
        sent = fp32("INPUT0", np.arange(count))
        assert client.infer("py_identity", [sent]).outputs["OUTPUT0"].raw == sent.raw


def test_a_coroutine(client):
    assert client.infer("py_coroutine", [fp32("INPUT0", [1, 2])]).outputs["OUTPUT0"].raw == fp32("", [2, 4]).raw


def test_the_classic_example(client):
    left, right = np.arange(32).reshape(2, 16), np.full((2, 16), 5)
    reply = client.infer("py_add_sub", [int32("INPUT0", left), int32("INPUT1", right)])
    assert reply.outputs["OUTPUT1"].raw == (left - right).astype(np.int32).tobytes()


def test_models_ask_other_models(client):
    assert run_code(client, "py_asking", "out = said(request_of('py_identity', fp32(1, 2)).exec())") == "{'OUTPUT0': [1.0, 2.0]}"
    assert run_code(client, "py_asking", "out = said(request_of('chain', fp32(1, 2)).exec())") == "{'OUTPUT0': [1.0, 2.0]}"
    once = "out = [said(one) for one in request_of('py_decoupled', texts({!r}), outputs=['SAID', 'MORE']).exec(decoupled=True)]"
    assert run_code(client, "py_asking", once.format("send(text('a')); send(text('b'), FINAL)")) == """["{'SAID': [b'a']}", "{'SAID': [b'b']}"]"""


def test_long_texts_and_errors(client):
    action = text("ACTION", [b"long_answer"])
    assert said(client.infer("py_actions", [action])) == "long " * 50_000
    with pytest.raises(Refused) as caught:
        client.infer("py_actions", [text("ACTION", [b"long_error"])])
    assert "RuntimeError: long long" in caught.value.text
    with pytest.raises(Refused) as caught:
        client.infer("py_actions", [text("ACTION", [b"exits"])])
    assert "SystemExit" in caught.value.text


def test_large_outputs_and_arrays_of_others(client):
    reply = client.infer("py_large", [Given("SIZE", "INT64", [1], np.int64(64 << 20).tobytes())])
    assert len(reply.outputs["MADE"].raw) == 64 << 20
    sent = fp32("INPUT0", np.arange(COUNT))
    assert client.infer("py_dlpack", [sent]).outputs["OUTPUT0"].shape == [COUNT]


# ---------------------------------------------------------------------------------------------- who decides


def started(launcher, name: str, models, *flags: str):
    """A server with these models, which may not load."""
    repository = launcher.copy_of(name)
    for model in models:
        put(repository, model)
    return launcher.running(name, PATIENT, "--exit-on-error=false", *flags, repository=repository)


def ready(client, model: str) -> bool:
    try:
        run_code(client, model, "out = 1")
    except Refused:
        return False
    return True


def test_a_model_confines_itself_where_the_operator_does_not(launcher, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    models = [calling_model("free"), calling_model("own", SANDBOX="on"), calling_model("writes", SANDBOX="on", SANDBOX_WRITE=str(place), SANDBOX_NETWORK="on")]
    with started(launcher, "own_sandbox", models) as server, open_client("http", server) as client:
        fork = "out = refused(lambda: os.fork() or os._exit(0))"
        assert run_code(client, "free", fork) == "not refused"
        assert run_code(client, "own", fork).startswith("PermissionError")
        write = f"out = refused(lambda: open('{place}/file', 'w').write('a'))"
        assert run_code(client, "own", write).startswith("PermissionError")
        assert run_code(client, "writes", write) == "not refused"
        assert run_code(client, "writes", "import socket; out = refused(socket.socket)") == "not refused"
        assert (place / "file").read_text() == "a"


def test_a_model_does_not_loosen_what_the_operator_wants(launcher, tmp_path):
    allowed = tmp_path / "allowed"
    (allowed / "below").mkdir(parents=True)
    (allowed / "link").symlink_to("/")
    models = [
        calling_model("off", SANDBOX="off"), calling_model("network", SANDBOX_NETWORK="on"), calling_model("more", SANDBOX_MEMORY=str(2 << 30)),
        calling_model("elsewhere", SANDBOX_WRITE=str(tmp_path)), calling_model("link", SANDBOX_WRITE=str(allowed / "link")),
        calling_model("below", SANDBOX_WRITE=str(allowed / "below"), SANDBOX_MEMORY=str(1 << 29)),
    ]  # fmt: skip
    flags = [*SANDBOX, f"--backend-config=python,sandbox-write={allowed}"]
    with started(launcher, "loosening", models, *flags) as server, open_client("http", server) as client:
        assert [model for model in ("off", "network", "more", "elsewhere", "link", "below") if ready(client, model)] == ["below"]
        log = server.log_text()
        for words in (
            "parameter SANDBOX of model 'off' is 'off', and the operator's sandbox is 'on'",
            "parameter SANDBOX_NETWORK of model 'network' is 'on', and the operator's sandbox-network is 'off'",
            "parameter SANDBOX_MEMORY of model 'more' is '2147483648', and the operator's sandbox-memory is '1073741824'",
            f"parameter SANDBOX_WRITE of model 'elsewhere' names '{tmp_path}', which lies below none of the places",
            "parameter SANDBOX_WRITE of model 'link' names '/', which lies below none of the places",
        ):
            assert words in log, words
        assert run_code(client, "below", f"out = refused(open, '{allowed}/a', 'w')").startswith("PermissionError")
        assert run_code(client, "below", f"out = refused(open, '{allowed}/below/a', 'w')") == "not refused"
        assert run_code(client, "below", "import resource; out = resource.getrlimit(resource.RLIMIT_DATA)") == str((1 << 29, 1 << 29))


def test_instances_that_share_initialize_need_processes(launcher):
    shared = vector("shared", "identity", extra=parameters(SHARE_INITIALIZE="yes") + "instance_group [ { count: 2 kind: KIND_CPU } ]\n")
    with started(launcher, "shared_none", [shared], SANDBOX[0]) as server, open_client("http", server) as client:
        with pytest.raises(Refused):
            client.infer("shared", [fp32("INPUT0", [1])])
        assert "sandbox-processes" in server.log_text()
    flags = [SANDBOX[0], "--backend-config=python,sandbox-processes=any"]
    with started(launcher, "shared_any", [shared], *flags) as server, open_client("http", server) as client:
        assert client.infer("shared", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].shape == [1]


def test_processes_are_counted_for_each_model_of_a_server_that_is_not_roots(launcher, tmp_path):
    """As root it is refused; as another user each model has as many as it may, however many the user has."""
    flags = [SANDBOX[0], "--backend-config=python,sandbox-processes=12"]
    models = [calling_model("counted")]
    program = pathlib.Path("/usr/bin/python{}.{}".format(*sys.version_info))
    if os.getuid() != 0 or not program.exists():
        pytest.skip("only root starts a server as root and as another user, who needs a Python of this version")
    with started(launcher, "counted_root", models, *flags) as server, open_client("http", server) as client:
        if ready(client, "counted"):
            assert "12 processes and threads (control group)" in server.log_text()
        else:
            assert "the kernel does not limit how many processes root has: run the server as another user" in server.log_text()
            assert "has resource limits and no control group: " in server.log_text()
    repository = launcher.copy_of("counted_user")
    put(repository, models[0])
    user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]
    for folder in (repository, *repository.parents):
        if subprocess.run([*user, "test", "-x", folder]).returncode:
            folder.chmod(folder.stat().st_mode | 0o011)
    # The environment of the tests may lie where that user cannot go.
    packages = pathlib.Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            shutil.copytree(packages / name, repository.parent / "packages" / name, dirs_exist_ok=True)
    command, environment = servers.nerite_command(repository)
    environment["PYTHONPATH"] = str(repository.parent / "packages")
    environment.pop("VIRTUAL_ENV", None)
    flags = [PATIENT, "--exit-on-error=false", "--session-socket=off", f"--backend-config=python,interpreter={program}", *flags]
    server = servers.start([*user, *command], environment, flags, tmp_path / "log", oracle=False, repository=repository)
    try:
        with open_client("http", server) as client:
            if "no user namespace can be made" in server.log_text():
                pytest.skip("no user namespaces for users here")
            code = (
                "import subprocess\nfound = []\nout = refused(lambda: [found.append(subprocess.Popen(['sleep', '100'])) for _ in range(100)])\n"
                "out = (len(found), out)\n[(one.kill(), one.wait()) for one in found]"
            )
            count, why = eval(run_code(client, "counted", code))
            assert 0 < count <= 12 and why.startswith("BlockingIOError: [Errno 11]"), (count, why)
            assert eval(run_code(client, "counted", code))[0] == count
    finally:
        servers.stop(server)


def test_memory_of_a_group_is_held_or_the_model_says_why_not(launcher):
    """Whether the server has a control group to divide depends on how the tests were started."""
    models = [calling_model("held", SANDBOX_GROUP_MEMORY=str(1 << 30)), calling_model("effort", SANDBOX="best-effort", SANDBOX_GROUP_MEMORY=str(1 << 30))]
    for choice in ("on", "best-effort"):
        flags = [f"--backend-config=python,sandbox={choice}", f"--backend-config=python,sandbox-group-memory={1 << 31}"]
        with started(launcher, f"group_memory_{choice}", models, *flags) as server, open_client("http", server) as client:
            has_group = f"memory of its processes together {1 << 30} bytes (control group)" in server.log_text()
            for model in ("held", "effort"):
                assert ready(client, model) == (has_group or choice == "best-effort"), server.log_text()
            if not has_group and choice == "on":
                assert "sandbox-group-memory needs a control group, and " in server.log_text()
            elif not has_group:
                assert "but without: memory of its processes together (no control group)" in server.log_text()


def test_a_setting_that_means_nothing_is_refused_with_what_it_may_be(launcher):
    with started(launcher, "wrong", [calling_model("wrong")], "--backend-config=python,sandbox=true") as server:
        assert "--backend-config=python,sandbox is 'true'; it is 'on', 'best-effort' or 'off'" in server.log_text()


def environment(folder: pathlib.Path, unpack: str) -> pathlib.Path:
    """A packed environment with a numpy of its own, which is to run this once it is unpacked, as conda-pack's are."""
    made = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (packages,) = (made / "lib").glob("python3*/site-packages")
    here = pathlib.Path(np.__file__).parent
    for one in (here, here.with_name("numpy.libs")):
        if one.exists():
            shutil.copytree(one, packages / one.name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    (made / "bin" / "conda-unpack").write_text(unpack)
    with tarfile.open(folder / "env.tar", "w") as tar:
        tar.add(made, ".")
    return folder / "env.tar"


@pytest.mark.parametrize(
    ("unpack", "loads"),
    [("open('changed', 'w').write('a')", True), ("open('{0}', 'w').write('a')", False), ("import os; os.fork()", False)],
    ids=["changes its environment", "writes elsewhere", "forks"],
)
def test_what_an_environment_brings_runs_in_the_sandbox_too(launcher, tmp_path, unpack, loads):
    archive = environment(tmp_path, unpack.format(tmp_path / "elsewhere"))
    model = calling_model("brought", EXECUTION_ENV_PATH=str(archive))
    flags = ["--backend-config=python,sandbox=on"]
    with started(launcher, f"sandboxed_environment_{loads}", [model], *flags) as server, open_client("http", server) as client:
        assert ready(client, "brought") == loads
        if loads:
            assert run_code(client, "brought", "import sys; out = open(sys.prefix + '/changed').read() + np.__file__.replace(sys.prefix, '')[:5]") == "a/lib/"
            assert run_code(client, "brought", "import sys; out = refused(open, sys.prefix + '/changed', 'w')").startswith("PermissionError")
        else:
            assert "PermissionError" in server.log_text() and not (tmp_path / "elsewhere").exists()
