"""What does Triton have that nerite lacks so far?

A test named here must fail on nerite; one that passes is an error, so that this list stays true.
"""

LACKS: dict[str, list[str]] = {}


def lacking(node: str) -> str | None:
    """Why the test with this id cannot pass yet."""
    for reason, tests in LACKS.items():
        if any(test in node for test in tests):
            return f"nerite has no {reason} yet"
    return None
