"""What a search prints is lost: its reader is gone (`search run ... | head`, a killed `tee`), or its disk is full."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest
from driver_sessions import Study

from search.console.display import Output

PRINTS_ON = """
import pathlib, sys
from search.console.display import Output
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
def test_a_search_with_closed_output_completes(tmp_path: Path) -> None:
    """Its journal recorded "finished" with one of eight points done."""
    study = Study(tmp_path, trials=4, sleep=0.1)
    process = study.run()
    study.wait_until(lambda events: any(e["e"] == "eval" for e in events), process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=200) == 0
    assert study.events()[-1]["status"] == "finished"
    assert list(study.ends().values()) == ["completed"] * 4


class Disk(io.StringIO):
    """A file on a disk that is full for a while."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_full_disk_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    console = Output(file=disk)
    console.print("lost")
    console.print("lost, too")
    disk.full = False
    console.print("told")
    assert disk.getvalue() == "told\n"
    said = "output cannot be written (No space left on device); the search goes on"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_the_exit_code_is_the_searchs_own() -> None:
    """Python's was 120, for what it could not write on its way out."""
    code = "import click, sys; from search.cli.common import losable\nwith losable(): click.echo('lost')\nsys.exit(3)"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "output cannot be written (No space left on device); the search goes on\n"
    assert (done.returncode, done.stderr) == (3, said)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_search_without_writable_output_completes(tmp_path: Path) -> None:
    """Each event that could not be shown was a trial's failure."""
    study = Study(tmp_path, trials=4)
    with open("/dev/full", "w") as full:
        study.output = full
        assert study.run().wait(timeout=200) == 0
    assert study.events()[-1]["status"] == "finished"
    assert list(study.ends().values()) == ["completed"] * 4
    assert not [event for event in study.events() if event["e"] == "retry"]
