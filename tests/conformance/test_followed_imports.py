"""Does a change of a file outside the repository load the models again that import it, and is nothing refused meanwhile?"""

import pathlib
import threading
import time

import pytest
from clients import http_call, open_client
from followed_setup import CONFIG, FLAGS, answer, module, waits_for
from python_setup import kernel_refuses

TWO_INSTANCES = CONFIG + "instance_group { count: 2 kind: KIND_CPU }\n"
SHARED = 'parameters { key: "SHARE_INITIALIZE" value { string_value: "yes" } }\n'
MODEL = """\
import sys
import time

import triton_python_backend_utils as pb_utils

sys.path.insert(0, %r)


class TritonPythonModel:
    def initialize(self, args):
        # A module that is imported here is followed as well.
        from tools import scale

        self.factor = scale.FACTOR
        time.sleep(0.3)

    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one * self.factor)]) for one in found]
"""
PLAIN = MODEL.replace("from tools import scale", "").replace("scale.FACTOR", "1")


def put(repository: pathlib.Path, name: str, source: str, config: str = TWO_INSTANCES) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(source)
    (repository / name / "config.pbtxt").write_text(config)


def overwrite(path: pathlib.Path, text: str) -> None:
    """Writes in place, in one piece, and at least as much as before: the server finds the old text or the new one."""
    text = text.rstrip().ljust(path.stat().st_size) + "\n"
    with path.open("r+") as file:
        file.write(text)


def loads(server, name: str) -> int:
    """How often the model was loaded. While a load takes long, other lines begin in the same way."""
    return server.log_text().count(f'"loading: {name}:1"')


@pytest.fixture
def package(tmp_path) -> pathlib.Path:
    """A package beside the repository, with a module that models import."""
    folder = tmp_path / "library" / "tools"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import scale\n")
    (folder / "scale.py").write_text(module(2))
    return folder


@pytest.fixture
def followed(launcher, package, monkeypatch):
    if launcher.oracle:
        pytest.skip("2.51 does not follow what models import")
    repository = launcher.copy_of("imports")
    library = str(package.parent)
    put(repository, "scale", MODEL % library)
    # This model finds the package by the server's environment.
    monkeypatch.setenv("PYTHONPATH", library)
    put(repository, "forked", MODEL % "/nowhere", TWO_INSTANCES + SHARED)
    put(repository, "plain", PLAIN % library)
    with launcher.running("imports", *FLAGS, "--log-verbose=1", repository=repository) as found, open_client("http", found) as client:
        yield found, client


def test_an_imported_file_that_changes_is_served_soon_and_the_old_code_until_then(followed, package):
    server, client = followed
    assert [answer(client, name) for name in ("scale", "forked", "plain")] == [2, 2, 1]
    answers, failures, stop = {"scale": [], "forked": []}, [], threading.Event()

    def infer(name):
        try:
            with open_client("http", server) as own:
                while not stop.is_set():
                    answers[name].append(answer(own, name))
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            failures.append(failure)

    threads = [threading.Thread(target=infer, args=(name,)) for name in answers]
    for thread in threads:
        thread.start()
    try:
        overwrite(package / "scale.py", module(3))
        for name in answers:
            waits_for(lambda name=name: answer(client, name), 3)
        # An editor puts a file in the place of the old one. The new process's report is followed as well.
        (package / "scale.py~").write_text(module(4))
        (package / "scale.py~").rename(package / "scale.py")
        for name in answers:
            waits_for(lambda name=name: answer(client, name), 4)
            waits_for(lambda name=name: answers[name][-1:], [4])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    for found in answers.values():
        assert found == sorted(found), "no answer of old code comes after one of new code"
        assert set(found) == {2, 3, 4}
    # The first look after the start finds nothing new, and a change loads only the models that import the file.
    assert [loads(server, name) for name in ("scale", "forked", "plain")] == [3, 3, 1]


def test_an_import_that_fails_leaves_the_old_code_up_until_it_is_fixed(followed, package):
    server, client = followed
    overwrite(package / "scale.py", "FACTOR = ")
    # A change while models are being loaded is looked at later.
    waits_for(lambda: [server.log_text().count(f"failed to load '{name}'") for name in ("scale", "forked")], [1, 1])
    assert answer(client, "scale") == 2
    assert http_call(server.http, "GET", "/v2/models/scale/ready").status == 200
    (package / "scale.py").write_text(module(9))
    waits_for(lambda: answer(client, "scale"), 9)
    assert server.log_text().count("failed to load 'scale'") == 1, "a state that failed is tried once"


def test_other_files_of_the_folder_and_a_file_that_is_gone_load_nothing(followed, package):
    server, client = followed
    assert answer(client, "scale") == 2
    for number in range(50):
        (package / "notes.txt").write_text(str(number))
        time.sleep(0.01)
    (package / "scale.py").unlink()
    # The change of this model is seen later than those before it.
    (server.repository / "plain" / "1" / "model.py").write_text((PLAIN % "").replace("= 1", "= 10"))
    waits_for(lambda: answer(client, "plain"), 10)
    assert (loads(server, "scale"), answer(client, "scale")) == (1, 2)
    (package / "scale.py").write_text(module(5))
    waits_for(lambda: answer(client, "scale"), 5)


def test_only_so_many_imported_files_are_followed(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 does not follow what models import")
    repository = launcher.copy_of("many_imports")
    library = tmp_path / "library"
    library.mkdir()
    for number in range(300):
        (library / f"many_{number}.py").write_text("")
    imports = "for number in range(300):\n    __import__(f'many_{number}')\n"
    put(repository, "many", PLAIN % str(library) + imports)
    with launcher.running("many_imports", *FLAGS, repository=repository) as server, open_client("http", server) as client:
        waits_for(lambda: server.log_text().count("44 files that model 'many' imported are not followed"), 1)
        (library / "many_0.py").write_text("# changed\n")
        waits_for(lambda: loads(server, "many"), 2)
        assert answer(client, "many") == 1
        assert server.log_text().count("are not followed") == 1


def test_what_a_model_in_a_sandbox_imported_is_not_followed(launcher, package):
    if launcher.oracle or kernel_refuses():
        pytest.skip("needs a sandbox")
    repository = launcher.copy_of("confined_imports")
    library = str(package.parent)
    reads = 'parameters { key: "SANDBOX_READ" value { string_value: "%s" } }\n' % library
    put(repository, "scale", MODEL % library, TWO_INSTANCES + reads)
    put(repository, "plain", PLAIN % library, TWO_INSTANCES + reads)
    flags = [*FLAGS, "--backend-config=python,sandbox=on", f"--backend-config=python,sandbox-read={library}"]
    with launcher.running("confined_imports", *flags, repository=repository) as server, open_client("http", server) as client:
        (package / "scale.py").write_text(module(3))
        (server.repository / "plain" / "1" / "model.py").write_text((PLAIN % library).replace("= 1", "= 10"))
        waits_for(lambda: answer(client, "plain"), 10)
        assert (loads(server, "scale"), answer(client, "scale")) == (1, 2)
