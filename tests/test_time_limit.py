"""SLOW_SECONDS: what `.ci/run` skips for time, and what it must not skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import time
import conftest
import pytest

pytestmark = pytest.mark.slow
conftest.COSTLY = 0.2

@pytest.fixture(scope="module")
def made(): time.sleep(0.5)

def test_first(made): conftest.BEGAN -= 1000  # no time is left after it
def test_looks_at_what_was_made(made): pass
def test_begins_something(): pass
"""


def test_tests_that_look_at_a_costly_fixture_are_not_skipped_for_time(tmp_path: Path) -> None:
    """A study in a cloud once took all the time that there was, and what it had done was then looked at by one test."""
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-rs", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    env = os.environ | {"SLOW_SECONDS": "600"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert "2 passed, 1 skipped" in done.stdout, done.stdout
    assert "no time left for test_begins_something" in done.stdout
