"""What does Triton have that nerite lacks so far?

A test named here must fail on nerite; one that passes is an error, so that this list stays true.
"""

LACKS = {
    "readiness that models decide on": ["test_python_starting.py::test_a_model_that_says_itself_whether_it_is_ready"],
}


def lacking(node: str) -> str | None:
    """Why the test with this id cannot pass yet."""
    for reason, tests in LACKS.items():
        if any(test in node for test in tests):
            return f"nerite has no {reason} yet"
    return None
