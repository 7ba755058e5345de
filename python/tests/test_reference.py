"""Is the API reference what the docstrings say?"""

import sys

from peers import ROOT

sys.path.insert(0, str(ROOT / "python"))

import make_reference  # noqa: E402


def test_the_page_is_current():
    assert make_reference.PAGE.read_text() == make_reference.page(), "python python/make_reference.py writes it anew"


def test_a_changed_docstring_changes_the_page(monkeypatch):
    import nerite

    monkeypatch.setattr(nerite.Model.help, "__doc__", "Something else.")
    monkeypatch.setattr(nerite.connect, "__doc__", "Connects.\n\nParameters\n----------\nurl : str\n    Where,\n    and how.\n")
    page = make_reference.page()
    assert "| `help()` | Something else. |" in page
    assert "Parameters:\n\n- `url : str`: Where, and how.\n" in page


def test_names_of_other_packages_are_not_listed():
    import nerite.http

    names = make_reference.own_names(nerite.http)
    assert "InferenceServerClient" in names and "InferRequestedOutput" not in names and "np" not in names
    assert "executor" not in make_reference.PAGE.read_text()
