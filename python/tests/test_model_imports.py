"""Which files does the process of a model report as imported, so that the server follows their changes?"""

import json
import os
import types

import numpy as np
import pytest
from model_server import IDENTITY, start  # noqa: F401

from nerite.model import imports

OWN = "VALUE = 1\n"


def module_at(path: object) -> types.ModuleType:
    module = types.ModuleType("one")
    module.__file__ = path
    return module


def reported(files: imports.ImportedFiles) -> "dict[str, object]":
    ready: "dict[str, object]" = {}
    files.report_in(ready)
    return ready


@pytest.mark.parametrize(
    "path, is_own",
    [
        ("/srv/shared/helper.py", True),
        ("/usr/share/app/helper.py", True),
        ("/srv/models/m/1/model.py", False),
        ("/srv/models/m/common.py", False),
        ("/srv/models/more/common.py", True),
        ("/opt/env/share/tool.py", False),
        ("/opt/env/lib/python3.11/json/__init__.py", False),
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", False),
        ("/home/me/.local/lib/python3.11/site-packages/torch/__init__.py", False),
        ("/srv/my-site-packages/helper.py", True),
        ("/srv/shared/../models/m/1/model.py", False),
    ],
)
def test_the_users_own_files_are_chosen(path, is_own):
    left_out = imports.folders(["/srv/models/m", "/opt/env/"])
    assert imports.is_own(path, left_out) == is_own


def test_the_interpreter_and_what_is_installed_are_left_out():
    left_out = imports.folders(imports.interpreter_folders())
    for module in (json, os, np, pytest):
        assert not imports.is_own(module.__file__, left_out), module


def test_links_are_followed_for_the_choice(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.py").write_text(OWN)
    (tmp_path / "linked").symlink_to(tmp_path / "models")
    for folder, path in [("models", "linked/a.py"), ("linked", "models/a.py")]:
        assert not imports.is_own(str(tmp_path / path), imports.folders([str(tmp_path / folder)]))


def test_a_file_has_the_state_of_its_first_note(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(OWN)
    found = os.stat(path)
    files = imports.ImportedFiles("/srv/models/m")
    files.note([module_at(str(path))])
    path.write_text(OWN * 2)
    files.note([module_at(str(path))])
    assert reported(files) == {"imported": [(str(path), found.st_size, found.st_mtime_ns)]}


def test_only_regular_files_are_reported(tmp_path):
    os.mkfifo(tmp_path / "fifo.py")

    class Odd:
        @property
        def __file__(self):
            raise AssertionError("no code of the module may be called")

    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError("no code of the module may be called")

    paths = [str(tmp_path / "gone.py"), str(tmp_path), str(tmp_path / "fifo.py"), "/dev/zero", "a\0b", 7, None]
    files = imports.ImportedFiles("/srv/models/m")
    files.note([*map(module_at, paths), Odd(), Lazy("lazy"), None])
    assert reported(files) == {}


def test_the_number_of_files_and_the_length_of_paths_are_limited(tmp_path):
    deep = tmp_path / ("x" * 250) / ("x" * 250) / ("x" * 250) / ("x" * 250)
    deep.mkdir(parents=True)
    unreadable = os.fsdecode(os.fsencode(str(tmp_path)) + b"/\xff.py")
    paths = [str(deep / ("y" * 100)), unreadable, *(str(tmp_path / f"{number}.py") for number in range(imports.FILES_MAX + 2))]
    for path in paths:
        with open(path, "w") as file:
            file.write(OWN)
    files = imports.ImportedFiles("/srv/models/m")
    files.note(map(module_at, paths))
    report = reported(files)
    assert len(report["imported"]) == imports.FILES_MAX and report["unreported"] == 4


IMPORTING = """
import sys
sys.path.insert(0, {folder!r})
import json, early, beside
""" + IDENTITY + """
    def initialize(self, args):
        import late
"""


def test_the_process_reports_what_it_imported_by_the_end_of_initialize(start, tmp_path):  # noqa: F811
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in ("early", "late"):
        (folder / f"{name}.py").write_text(OWN)
    server = start(IMPORTING.format(folder=str(folder)), ready=False)
    (server.version_dir / "beside.py").write_text(OWN)
    ready = server.initialize()["ready"]
    states = [(str(folder / f"{name}.py"), len(OWN), os.stat(folder / f"{name}.py").st_mtime_ns) for name in ("early", "late")]
    assert [tuple(one) for one in ready["imported"]] == states
    assert "unreported" not in ready
