"""The notebook of docs/examples: its cells run as they stand, and what it holds is what they give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.pictures import NOTEBOOK, executed

nbformat = pytest.importorskip("nbformat")


def given(cell: Any) -> str:
    """All text that a cell shows."""
    return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def the(notebook: Any, text: str) -> Any:
    """The cell whose source has this text."""
    (found,) = [cell for cell in code(notebook) if text in cell.source]
    return found


def check(notebook: Any) -> None:
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    said = given(the(notebook, "search.run("))
    for line in ("checking data and encoder", "study quickstart-1: simcse", "starting Ray", "t0009 completed"):
        assert line in said, "what a terminal gets, from its first line"
    assert "ipywidgets" not in said
    assert {o.output_type for o in the(notebook, "search.run(").outputs} == {"stream"}, (
        "lines without gaps between them"
    )
    assert "'finished'" in given(the(notebook, "result.status"))
    assert "<table" in the(notebook, "results.trials").outputs[0].data["text/html"]
    measured, expected = re.search(r"measured (0\.\d+), expected (0\.\d+)", given(the(notebook, "verdict"))).groups()  # type: ignore[union-attr]
    assert 0.2 < float(expected) < float(measured) < 0.6
    for name in ("history", "curves"):
        assert the(notebook, f'plot("{name}")').outputs[0].data["image/png"]


def test_the_stored_notebook_has_been_executed() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    check(stored)
    assert not re.search(r"/(tmp|home|root|Users)/", NOTEBOOK.read_text(encoding="utf-8")), "a path of a machine"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    check(executed(tmp_path))
