"""Does one command measure a row beside the real Triton, and write its page?"""

import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import servers
import setup_oracle

LIMIT_S = 240
NUMBER = r"[\d.,]+"

pytestmark = pytest.mark.skipif(not setup_oracle.place("triton").exists(), reason="Triton is not installed: cargo xtask oracle")


def peer(*words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "NERITE_BIN": str(servers.nerite_binary())}
    command = [sys.executable, servers.ROOT / "benches" / "peer.py", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_row_is_measured_on_both_servers_and_on_the_limit(tmp_path):
    done = peer("l1", "--quick", "--concurrency=1", f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("*.md")
    text = written.read_text()
    assert re.search(rf"^# Measured on {written.stem}$", text, re.MULTILINE)
    for fact in ("machine", "versions", "load average", "other programs", "order"):
        assert f"| {fact} | " in text
    section = text[text.index("## L1: Small requests by shared memory") :]
    # What was printed is what was written.
    assert section.strip() in done.stdout
    for first in ("HTTP shm, 64 B, c1", "gRPC shm, 64 B, c1"):
        assert re.search(rf"^\| {first} \| infer/s \| {NUMBER} \| {NUMBER} \| {NUMBER} \| {NUMBER} \| \|$", section, re.MULTILINE), section
    cpu = re.findall(rf"^\| \| server CPU µs \| {NUMBER} \| {NUMBER} \| {NUMBER} \| {NUMBER} \| ≤ 1.6 × limit · .*$", section, re.MULTILINE)
    wake_ups = re.findall(rf"^\| \| wake-ups \| {NUMBER} \| {NUMBER} \| {NUMBER} \| {NUMBER} \| \|$", section, re.MULTILINE)
    assert len(cpu) == len(wake_ups) == 2, section
    for picture in (f"{written.stem}-cpu.svg", f"{written.stem}-ratios.svg"):
        assert f"]({picture})" in text
        ElementTree.parse(tmp_path / picture)


def test_a_row_that_is_not_there_is_refused():
    done = peer("L99")
    assert done.returncode == 2
    assert "no row L99: there are L1, inline, L2" in done.stderr
