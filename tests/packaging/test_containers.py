"""Are the tests of containers skipped, with the reason, where no container can run or pip reaches no registry?"""

import json
import subprocess
import sys

import containers
import pytest
import registry
import setup_containers

NO_NAT = 'level=warning msg="of no use"\nError: netavark: code: 4, msg: iptables: Table does not exist (do you need to insmod?)'


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """Replaces podman by a script. Its first word is the command."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "containers").mkdir()
    for tool in setup_containers.TOOLS:
        (folder / tool).write_text("#!/bin/sh\n")
        (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(setup_containers, "FOLDER", tmp_path / "containers")
    monkeypatch.setattr(setup_containers, "ANSWER_S", 0.2)
    monkeypatch.setattr(setup_containers.os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup_containers, "install", lambda: setup_containers.bases().write_text(json.dumps(setup_containers.BASES)))

    def replace(script: str) -> None:
        (folder / "podman").write_text(f"#!/bin/sh\n{script}\n")

    return replace


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"[ $1 != run ] || {{ echo '{NO_NAT}' >&2; exit 126; }}", "podman run: Error: netavark: code: 4, msg: iptables: Table does not exist"),
        ("[ $1 != volume ] || exit 5", "podman volume: exit status 5"),
        ("[ $1 != exec ] || { echo 'cannot write control groups' >&2; exit 255; }", "podman exec: cannot write control groups"),
        ("", "the published port of a container does not answer within 0.2 s"),
    ],
)
def test_an_engine_that_does_not_work_skips_with_the_reason(podman, script, reason):
    podman(script)
    with pytest.raises(SystemExit) as ended:
        setup_containers.main()
    assert str(ended.value).startswith(f"containers cannot run here: {reason}")
    assert setup_containers.why_not() == ended.value.code


def test_an_engine_that_hangs_skips_too(podman, monkeypatch):
    podman("[ $1 != run ] || exec sleep 100")
    monkeypatch.setattr(setup_containers.podman, "__kwdefaults__", {"limit_s": 0.5})
    with pytest.raises(SystemExit, match="podman run does not end within 0.5 s"):
        setup_containers.main()


def test_an_engine_that_works_is_tried_each_time(podman, monkeypatch, capsys):
    monkeypatch.setattr(setup_containers, "answers", lambda port: True)
    setup_containers.main()
    assert setup_containers.why_not() is None
    assert capsys.readouterr().out.strip() == str(setup_containers.FOLDER)
    podman("[ $1 != run ] || exit 126")
    with pytest.raises(SystemExit, match="podman run: exit status 126"):
        setup_containers.main()


def test_what_is_not_installed_is_reported(podman, monkeypatch):
    assert setup_containers.why_not() == "tests/packaging/setup_containers.py makes the bases of images"
    monkeypatch.setattr(setup_containers, "TOOLS", ("podman", "no-such-runtime"))
    assert setup_containers.why_not() == "containers need no-such-runtime"
    monkeypatch.setattr(setup_containers.os, "geteuid", lambda: 1000)
    assert setup_containers.why_not() == "containers need no-such-runtime, root"


def test_bases_that_are_gone_are_made_again(podman):
    setup_containers.install()
    assert setup_containers.has_bases()
    podman('[ "$1 $2" != "image exists" ]')
    assert not setup_containers.has_bases()


@pytest.mark.parametrize("cause", registry.NO_NETWORK)
def test_a_build_that_reaches_no_registry_skips(podman, tmp_path, cause):
    podman(f"[ $1 != build ] || {{ echo 'WARNING: Retrying after {cause}' >&2; exit 1; }}")
    with pytest.raises(pytest.skip.Exception, match="reaches no registry"):
        containers.build("client", tmp_path)


def test_a_build_where_nobody_answers_pip_skips(podman, tmp_path, monkeypatch):
    podman("[ $1 != build ] || { echo 'Retrying after ConnectTimeoutError'; exec sleep 100; }")
    monkeypatch.setattr(containers, "BUILD_S", 0.5)
    with pytest.raises(pytest.skip.Exception, match="reaches no registry"):
        containers.build("client", tmp_path)


def test_a_build_with_another_fault_fails(podman, tmp_path):
    podman("[ $1 != build ] || { echo 'COPY: no such file' >&2; exit 1; }")
    with pytest.raises(AssertionError, match="COPY: no such file"):
        containers.build("server", tmp_path)


LISTED = r"""
:env:.cert='/a/cert.pem'
:env:.index-url='https://user:p%40ss@mirror/simple'
:env:.disable-pip-version-check='1'
global.index-url='https://elsewhere/simple'
global.cache-dir='/a/cache'
install.find-links='/a/wheels\n/b'
install.cert='/a/other.pem'
"""
WRITTEN = """[install]
find-links = /a/wheels
\t/b

[global]
cert = /a/cert.pem
index-url = https://user:p%40ss@mirror/simple

"""


def test_pip_is_told_what_the_machines_files_and_variables_say():
    """A variable comes before each file, and what is not about the places of packages is left out."""
    assert registry.configuration(registry.read(LISTED)) == WRITTEN


def test_a_variable_reaches_the_build(podman, tmp_path, monkeypatch):
    """Its file is mounted, and so is each file and folder that it names."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} /no/such/folder")
    podman(f"""[ $1 != build ] || for word; do
        echo "$word" >>{tmp_path}/words
        case $word in *:/etc/pip.conf:ro) word=${{word#--volume=}}; cp "${{word%%:*}}" {tmp_path}/told; ls -l "${{word%%:*}}" >{tmp_path}/mode;; esac
    done""")
    containers.build("client", tmp_path)
    assert "index-url = https://mirror/simple\n" in (tmp_path / "told").read_text()
    assert f"--volume={tmp_path}:{tmp_path}:ro" in (tmp_path / "words").read_text().splitlines()
    assert "/no/such/folder:" not in (tmp_path / "words").read_text()
    assert (tmp_path / "mode").read_text().startswith("-rw-------")


def test_pip_reads_what_was_written(tmp_path):
    place = tmp_path / "pip.conf"
    place.write_text(WRITTEN)
    command = [sys.executable, "-m", "pip", "config", "list"]
    variables = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": str(place)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert "global.index-url='https://user:p%40ss@mirror/simple'" in done.stdout.splitlines()
    assert r"install.find-links='/a/wheels\n/b'" in done.stdout.splitlines()
    assert registry.local_paths({("global", "cert"): str(place), ("global", "index-url"): f"file://{tmp_path}"}) == [tmp_path, place]
    assert registry.local_paths({("global", "find-links"): "wheels https://mirror /no/such/folder"}) == []
