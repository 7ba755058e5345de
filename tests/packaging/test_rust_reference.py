"""Is the API reference of the Rust client what the comments in its sources say, and does it have each public name?"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "crates" / "client"))

import make_rust_reference  # noqa: E402


def test_the_page_is_current():
    assert make_rust_reference.PAGE.read_text() == make_rust_reference.page(), "python3 crates/client/make_rust_reference.py writes it anew"


def test_each_exported_name_is_on_the_page():
    listed = {*make_rust_reference.TYPES, *make_rust_reference.FUNCTIONS, *make_rust_reference.OF_OTHERS}
    names = {name.rpartition("::")[2] for name in listed}
    assert make_rust_reference.exported() <= names, make_rust_reference.exported() - names


def test_each_variant_of_the_error_is_on_the_page():
    _, members, _ = make_rust_reference.read()
    source = (make_rust_reference.SOURCES / "error.rs").read_text()
    assert len(members["Error"]) == source.count("#[error(") + source.count("pub fn ")
    assert members["Error"][0].signature == "Endpoint"
