"""Nobody reads what a search prints any more: `search run ... | head`, a `tee` that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lives import Study

PRINTS_ON = """
import pathlib, sys
from search.console.output import Output
console = Output()
for n in range(5000):
    console.print(f"line {n}")
print("an error", file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1]).write_text("came to its end")
"""


def test_a_closed_pipe_ends_nothing(tmp_path: Path) -> None:
    """rich itself raises SystemExit in the middle of a line."""
    script = [sys.executable, "-c", PRINTS_ON, str(tmp_path / "told")]
    process = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "told").read_text() == "came to its end"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_search_whose_output_is_closed_comes_to_its_end(tmp_path: Path) -> None:
    """Its journal said "finished" with one of eight points done."""
    study = Study(tmp_path, trials=4, sleep=0.1)
    process = study.run()
    study.wait_until(lambda events: any(e["e"] == "eval" for e in events), process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=200) == 0
    assert study.events()[-1]["status"] == "finished"
    assert list(study.ends().values()) == ["completed"] * 4
