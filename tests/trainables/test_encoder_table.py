"""docs/encoders.md is up to date: the same trials again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_families import family

from benchmarks.encoders import HEADINGS, PAGE, Row, tried
from benchmarks.tiny_encoders import FAMILIES

pytestmark = pytest.mark.costly


def written() -> dict[str, Row]:
    """The rows of the page by family."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {row[0]: Row(**dict(zip(HEADINGS, row, strict=True))) for row in cells}


def test_the_page_has_every_family_and_no_silent_failure() -> None:
    rows = written()
    assert list(rows) == [f.model_type for f in FAMILIES]
    assert len(rows) >= 20
    for row in rows.values():
        for cell in (row.loads, row.resumes, row.exports, row.bidirectional, row.lora):
            assert cell in ("works", "-") or cell.startswith("refused")
        assert row.batches in ("packed", "padded (noted)", "-")


FEW = ("modernbert", "qwen3", "squeezebert", "fnet")


@pytest.mark.parametrize(
    "name", [pytest.param(f.model_type, marks=() if f.model_type in FEW else pytest.mark.slow) for f in FAMILIES]
)
def test_the_page_is_true(name: str, tmp_path: Path) -> None:
    found, row = tried(family(name), tmp_path), written()[name]
    assert all((getattr(found, heading) or "-") == getattr(row, heading) for heading in HEADINGS)
