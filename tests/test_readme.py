"""The README's methods are all there, and its two lines are those that `.ci/run` pastes (the rest: test_docs.py)."""

from __future__ import annotations

import re
from pathlib import Path

from trainables.contract.registry import SHIPPED

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_method_has_a_row():
    for method in SHIPPED:
        assert f"| `{method}` |" in TEXT


def test_the_two_lines_are_where_ci_looks():
    lines = [line.strip() for line in TEXT.splitlines() if re.match(r"    (python3 -m venv|\.venv/bin/pip)", line)]
    assert len(lines) == 2
    assert lines[0].endswith("search run spaces/quickstart.yaml")
    assert lines[1].endswith("pytest -n 2")
