"""Does each command of the documentation run, and print what the page shows?

Pages run in an empty directory, against the program under test (`documents.py` says how).
"""

import configparser
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib

import documents
import pytest

ROOT = documents.ROOT
LIMIT_S = 150
# Pages whose programs ask a server that no command of the page starts.
SERVED = {"docs/clients.md": "nerite serve --model-repository=models"}
# What lies in the reader's directory.
LINKED = {
    "README.md": {"examples": "examples"},
    "docs/access.md": {"models": "examples/models"},
    "docs/backends.md": {"tests": "tests"},
    "docs/clients.md": {"models": "examples/models"},
    "docs/hardening.md": {"models": "examples/models"},
    "docs/logs.md": {"models": "examples/models"},
    "docs/monitoring.md": {"models": "examples/models"},
    "docs/operator.md": {"models": "examples/models"},
    "docs/page.md": {"models": "examples/models"},
    "docs/sandbox.md": {"models": "examples/models"},
    "docs/settings.md": {"models": "examples/models"},
    "docs/stopping.md": {"models": "examples/models"},
    "docs/tls.md": {"models": "examples/models"},
    "examples/README.md": {"examples": "examples"},
    "packaging/wheel/README.md": {"models": "examples/models"},
}
ALL = ["README.md", "examples/README.md", "packaging/wheel/README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def shell(program):
    # A short path: a session socket lies in it.
    made = documents.Shell(program.resolve(), pathlib.Path(tempfile.mkdtemp(prefix="nerite-page-")))
    yield made
    made.close()


def serving(page: str) -> list[documents.Step]:
    """The command that starts a server for this page."""
    return documents.steps(f"<!-- stays up -->\n```console\n$ {SERVED[page]}\n```") if page in SERVED else []


@pytest.mark.parametrize("page", ALL)
def test_each_command_of_a_page_runs(shell, page, record_property):
    found = documents.steps((ROOT / page).read_text())
    for tool in ("curl", "openssl", "gcc"):
        if any((step.command or "").startswith(f"{tool} ") for step in found) and shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    for name, place in LINKED.get(page, {}).items():
        shell.link(name, ROOT / place)
    shell.run(serving(page) + found, LIMIT_S)
    # Figures, and nothing to pass or fail by: `pytest -s` shows them, `--junit-xml` keeps them.
    took = shell.seconds(serving(page) + found)
    record_property("seconds", round(sum(took.values()), 1))
    print(f"\n{page}: {sum(took.values()):.1f} s, of which by line", ", ".join(f"{line}: {seconds:.1f}" for line, seconds in took.items()))


def test_each_part_of_a_models_configuration_is_one():
    config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")
    found = [(page, part) for page in ALL for part in documents.parts((ROOT / page).read_text(), "protobuf")]
    for page, part in found:
        try:
            text_format.Parse(part, config.ModelConfig())
        except text_format.ParseError as error:
            pytest.fail(f"{page}: {error}\n{part}")
    assert len(found) > 8


def test_each_part_of_a_file_of_settings_is_one(program, tmp_path):
    shown = subprocess.run([program, "config", "show"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^(?:# )?([a-z0-9-]+) = ", shown, re.M))
    found = [(page, part) for page in ALL for part in documents.parts((ROOT / page).read_text(), "toml")]
    own = 0
    for page, part in found:
        if not set(tomllib.loads(part)) & known:
            continue
        own += 1
        (tmp_path / "nerite.toml").write_text(part)
        done = subprocess.run([program, "config", "check", "--no-files", tmp_path / "nerite.toml"], capture_output=True, text=True)
        assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"
    assert own and len(found) > own
    for page in ALL:
        for part in documents.parts((ROOT / page).read_text(), "ini"):
            configparser.RawConfigParser().read_string(part, page)


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```console\n$ echo a\nb\n```", "the page shows:\nb"),
        ("```console\n$ echo a\na\na\n```", "the page shows:\na\na"),
        ("```console\n$ false\n```", "ended with 1"),
        ("```console\n$ false\n$ true\n```", "ended with 1"),
        ("```console\n$ exit 0\n$ true\n```", "no status in time"),
        ("```console\n$ sleep 60\n```", "no status in time"),
        ("```python\nprint(x)\n```", "NameError"),
        ("```python\n# a/b.py\nprint(3)\n```\n```console\n$ python a/b.py\n4\n```", "printed:\n3"),
        ("```console\n$ nerite serve --no-such-flag\n```", "ended with 1"),
    ],
)
def test_a_page_that_differs_fails(shell, page, fault):
    with pytest.raises(AssertionError, match=re.escape(fault)):
        shell.run(documents.steps(page), 5)


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ echo 'a\n> b'\na\nb\n```",
        "```console\n$ seq 5\n1\n…\n5\n```",
        "```console\n$ seq 2\n1\n2\n…\n```",
        "```console\n$ echo 8000 | wc -c\n…\n```",
        "```console\n$ cd /\n$ pwd\n/\n```",
        "```console\n$ sleep 60 &\n$ kill %1\n```",
        "<!-- not run: tests/packaging/test_demo.py runs it -->\n```console\n$ false\n```",
        "<!-- not run: tests/packaging/test_documents.py::test_a_page_that_holds_passes -->\n```console\n$ false\n```",
        "<!-- not run: needs another host: one with a printer -->\n```console\n$ false\n```",
        "```python\n>>> for word in ('a', 'b'):\n...     assert word\n```",
        "```text\n  nerite serve\n```",
    ],
)
def test_a_page_that_holds_passes(shell, page):
    shell.run(documents.steps(page), 5)


def test_a_server_that_stays_up_is_there_until_the_next(shell):
    shell.link("models", ROOT / "examples" / "models")
    serve = "<!-- stays up -->\n```console\n$ nerite serve --model-repository=models --id={}\n```\n"
    look = "```console\n$ curl -s localhost:8000/v2\n{{\"name\":\"{}\"…\n```\n"
    shell.run(documents.steps("".join(one.format(name) for name in ("a", "b") for one in (serve, look))), LIMIT_S)


@pytest.mark.parametrize(
    "page",
    [
        "```sh\nls\n```",
        "a\n\n    ls\n",
        "```\nls\n```",
        "```console\nls\n```",
        "```text\nnerite serve\n```",
        "<!-- not run: it takes long -->\n```console\n$ false\n```",
        "<!-- not run: tests/packaging/test_nothing.py runs it -->\n```console\n$ false\n```",
        "<!-- not run: tests/packaging/test_demo.py::test_nothing runs it -->\n```console\n$ false\n```",
        "<!-- stays up -->\n```console\n$ nerite serve\nready\n```",
    ],
)
def test_what_would_not_be_run_is_an_error(page):
    with pytest.raises(documents.Unclear):
        documents.steps(page)


def flags_of_row(title: str) -> list[str]:
    """The flags that the page for those who come from Triton names in one row."""
    (row,) = re.findall(rf"^\| {title} \| (.*) \|$", (ROOT / "docs" / "from-triton.md").read_text(), re.M)
    return re.findall(r"`--([a-z0-9-]+)`", row)


def test_the_flags_that_differ_from_triton_are_those_of_the_program(program):
    table = re.findall(r"^\| `--([a-z0-9-]+)` \|[^|]*\| (Triton|nerite|ignored) \|", (ROOT / "docs" / "flags.md").read_text(), re.M)
    known = dict(table)
    accepted = flags_of_row("accepted, ignored") + flags_of_row("accepted as `false` only")
    assert sorted(accepted) == sorted(name for name in known if known[name] == "ignored")
    for name in flags_of_row("refused"):
        result = subprocess.run([program, "config", "show", f"--{name}=1"], capture_output=True, text=True)
        assert result.returncode == 1 and f"unrecognized option '--{name}'" in result.stderr


def test_links_out_of_docs_lead_to_the_repository_in_the_site():
    settings = tomllib.loads((ROOT / "book.toml").read_text())["preprocessor"]["book_links"]
    page = "[a](gpu.md) [b](../python/README.md#models-as-functions) [c](../docs/gpu.md) [d](https://x/../y)"
    chapter = {"Chapter": {"name": "P", "path": "p.md", "content": page, "sub_items": []}}
    book = json.dumps([{"config": {"preprocessor": {"book_links": settings}}}, {"sections": [chapter]}])
    run = subprocess.run(settings["command"].split(), cwd=ROOT, input=book, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)["sections"][0]["Chapter"]["content"]
    expected = page.replace("../python", settings["repository"] + "/python")
    assert found == expected


def test_every_link_out_of_docs_leads_to_a_file_of_the_repository():
    links = [(page, link) for page in (ROOT / "docs").glob("*.md") for link in re.findall(r"\]\((\.\./[^)\s#]*)", page.read_text())]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
