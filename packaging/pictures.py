#!/usr/bin/env python3
"""Which pictures do the README and the pages show?

    python3 packaging/pictures.py                          # request.svg and latency.svg
    NERITE_BIN=target/release/nerite python3 packaging/pictures.py top demo page

`request` is a drawing. `latency` is drawn from the newest page of docs/results, as `cargo xtask peer` does when it writes that page. `top` and `demo` show what
the program prints on a terminal, so take a release build. `page` is the page for browsers, light and dark, in Debian's chromium. `top` and `page` need numpy
for their load, and `page` selenium: use the environment of the tests.
"""

import contextlib
import fcntl
import html
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES, RESULTS = ROOT / "docs" / "pictures", ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT / "benches"))

from comparison import latency  # noqa: E402

COLUMNS, ROWS = 100, 30
# Of a character of the terminal, in pixels.
ADVANCE, LINE = 7.6, 17
LOAD = """
import sys, time
import numpy as np
import nerite

client = nerite.connect(sys.argv[1])
digits, simple, identity = (client.model(name) for name in ("digits", "simple", "identity_fp32"))
while True:
    digits(image=np.zeros((8, 64), np.float32))
    simple(np.ones((1, 16), np.int32), np.ones((1, 16), np.int32))
    identity(np.zeros(16384, np.float32))
    time.sleep(0.002)
"""


REQUEST = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 330" width="800" height="330" font-family="sans-serif" font-size="15" fill="#222">
  <title>A request through shared memory: only a few bytes go through the socket</title>
  <defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path d="M0 0 9 4 0 8z" fill="#444"/></marker></defs>
  <rect width="800" height="330" rx="10" fill="#fff"/>
  <g fill="#f3f5f8" stroke="#9aa0a6" stroke-width="1.5"><rect x="20" y="20" width="196" height="290" rx="8"/><rect x="584" y="20" width="196" height="290" rx="8"/></g>
  <g font-size="17" font-weight="bold" text-anchor="middle"><text x="118" y="48">Your program</text><text x="682" y="48">nerite</text></g>
  <rect x="602" y="160" width="160" height="126" rx="6" fill="#fff" stroke="#9aa0a6" stroke-width="1.5"/>
  <rect x="304" y="144" width="192" height="142" rx="8" fill="#fff" stroke="#1a66d6" stroke-width="2.5"/>
  <rect x="320" y="160" width="160" height="48" rx="4" fill="#f2b84b"/><rect x="320" y="222" width="160" height="48" rx="4" fill="#8cc27a"/>
  <g text-anchor="middle"><text x="400" y="133" font-weight="bold">shared memory</text><text x="400" y="189">input tensor</text><text x="400" y="251">output tensor</text>
    <text x="400" y="306" font-size="14">both processes map it</text><text x="400" y="80" font-size="14">socket</text><text x="682" y="186" font-weight="bold">model</text></g>
  <g stroke="#444" stroke-width="2" fill="none" marker-end="url(#tip)">
    <path d="M216 92H580"/><path d="M216 184H316"/><path d="M320 246H220"/><path d="M480 184H598"/><path d="M602 246H484"/></g>
STEPS</svg>
"""
# Where the number of a step and its words stand.
STEPS = [
    (44, 184, "writes the tensor"),
    (44, 92, "names the tensor|in a few bytes"),
    (620, 218, "reads and writes|in place"),
    (44, 246, "reads the result"),
]


def request() -> str:
    """A request through shared memory."""
    return REQUEST.replace("STEPS", "".join(step(number, *about) for number, about in enumerate(STEPS, 1)))


def step(number: int, x: int, y: int, words: str) -> str:
    lines = words.split("|")
    said = "".join(f'<text x="{x + 17}" y="{y + 5 + 18 * at}" font-size="14">{line}</text>' for at, line in enumerate(lines))
    badge = f'<circle cx="{x}" cy="{y}" r="12" fill="#1a66d6"/><text x="{x}" y="{y + 5}" fill="#fff" font-weight="bold" text-anchor="middle">{number}</text>'
    return f"  {badge}{said}\n"


def newest_results() -> pathlib.Path:
    return max(page for page in RESULTS.glob("*.md") if re.fullmatch(r"\d{4}-\d\d-\d\d", page.stem))


def screen(lines: list[str], title: str, columns: int = COLUMNS) -> str:
    """Lines of a terminal as a picture."""
    width, height = round(columns * ADVANCE) + 32, len(lines) * LINE + 56
    # Each word has its column, because not every viewer has a font in which all characters are of one width.
    rows = "\n".join(
        f'    <text x="{16 + word.start() * ADVANCE:.1f}" y="{50 + at * LINE}">{html.escape(word.group())}</text>'
        for at, line in enumerate(lines)
        for word in re.finditer(r"\S+(?: \S+)*", line)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
  <title>{html.escape(title)}</title>
  <rect width="{width}" height="{height}" rx="8" fill="#16191f" stroke="#3a3f4a"/>
  <g fill="#5b6270"><circle cx="20" cy="18" r="5"/><circle cx="38" cy="18" r="5"/><circle cx="56" cy="18" r="5"/></g>
  <text x="{width / 2:g}" y="22" text-anchor="middle" font-family="sans-serif" font-size="12" fill="#9aa2b1">{html.escape(title)}</text>
  <g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12.6" fill="#e6e8ec">
{rows}
  </g>
</svg>
"""


def last_look(written: str) -> list[str]:
    """What a terminal shows last: `nerite top` begins each look at the first place, and clears what is behind a line."""
    looks = [look for look in re.sub(r"\x1b\[\?\d+[hl]", "", written).split("\x1b[H") if "\x1b[J" in look]
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", looks[-1].partition("\x1b[J")[0]).split("\n")
    return [line.rstrip() for line in lines]


def top() -> str:
    """`nerite top` beside a server with some load."""
    with loaded() as url:
        written = on_terminal([program(), "top", "--url", url], 3)
    lines = [line.replace(url.rpartition(":")[2], "8002") for line in last_look(written)]
    return screen(lines, "nerite top")


def page() -> None:
    """The page for browsers of a server with some load."""
    sys.path.insert(0, str(ROOT / "tests" / "page"))
    import browsers

    with loaded() as url, browsers.opened() as browser:
        browser.set_window_size(1100, 1000)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        browser.get(url)
        # The charts of the page show two minutes.
        time.sleep(100)
        for scheme in ("light", "dark"):
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            time.sleep(2)
            browser.save_screenshot(str(PICTURES / f"page-{scheme}.png"))


@contextlib.contextmanager
def loaded():
    """A server with some load; the address of its metrics."""
    sys.path.insert(0, str(ROOT / "python"))
    import nerite

    os.environ["NERITE_BIN"] = program()
    with nerite.serve(ROOT / "examples" / "models") as server:
        load = subprocess.Popen([sys.executable, "-c", LOAD, f"unix:{server.session_socket}"], env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        try:
            time.sleep(2)
            yield f"http://{server.metrics}"
        finally:
            load.terminate()
            load.wait()


def demo() -> str:
    """What `nerite demo` prints, without the commands to try."""
    done = subprocess.run([program(), "demo", "--exit", "--examples", ROOT / "examples"], capture_output=True, text=True, check=True)
    lines = done.stdout.partition("\nTo try:")[0].rstrip().replace(f"{ROOT}/", "").splitlines()
    return screen(["$ nerite demo --exit", *lines], "nerite demo", max(map(len, lines)))


def on_terminal(command: list[str], seconds: float) -> str:
    """What a program writes to a terminal in this time."""
    main_end, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
    os.close(end)
    written, ends = b"", time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if select.select([main_end], [], [], left)[0]:
            written += os.read(main_end, 65536)
    process.terminate()
    process.wait()
    os.close(main_end)
    return written.decode()


def program() -> str:
    return os.environ.get("NERITE_BIN", str(ROOT / "target" / "release" / "nerite"))


MADE = {"request": request, "latency": lambda: latency.drawing(newest_results().read_text()), "top": top, "demo": demo, "page": page}


def main() -> None:
    names = sys.argv[1:] or ["request", "latency"]
    if unknown := [name for name in names if name not in MADE]:
        sys.exit(f"no picture {', '.join(unknown)}; there are {', '.join(MADE)}")
    for name in names:
        picture = MADE[name]()
        if picture:
            (PICTURES / f"{name}.svg").write_text(picture)
        print(f"written: {name}")


if __name__ == "__main__":
    main()
