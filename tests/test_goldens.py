"""Every reference file of `$GOLDENS_DIR` (default tests/goldens) against the code.

`<stem>.json` is checked by the function `check_<stem>` of one of the golden_* modules; a file without such a function
is a failure, so that no reference case goes unchecked.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("GOLDENS_DIR") or Path(__file__).parent / "goldens")
MODULES = ("golden_simcse", "golden_sda", "golden_gclsr", "golden_formulas", "golden_evaluation")
FILES = sorted(FOLDER.glob("*.json")) if FOLDER.is_dir() else []


def check_of(stem: str) -> Callable[[Any], None] | None:
    """The function that checks a reference file, or None."""
    for name in MODULES:
        if importlib.util.find_spec(name) and (check := getattr(importlib.import_module(name), f"check_{stem}", None)):
            return check  # type: ignore[no-any-return]
    return None


def test_there_are_reference_files() -> None:
    assert FILES, f"no *.json in {FOLDER}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_golden(file: Path) -> None:
    check = check_of(file.stem)
    if check is None:
        pytest.fail(f"{file}: no function check_{file.stem} in any of {', '.join(MODULES)}")
    check(json.loads(file.read_text("utf-8")))


def test_an_unknown_file_would_fail() -> None:
    assert check_of("no_such_reference") is None
    assert all(check_of(file.stem) for file in (Path(__file__).parent / "goldens").glob("*.json"))
