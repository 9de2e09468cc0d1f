"""A disk that is full under the study itself: one line, nothing lost, and it goes on when there is space."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver_sessions import Study

from search.store.journal import Journal, JournalWriteError
from search.store.ledger import Ledger


def test_a_journal_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal").symlink_to("/dev/full")
    journal = Journal.__new__(Journal)
    journal.ledger, journal._file = Ledger(), (tmp_path / "journal").open("w")
    for _ in range(2):
        with pytest.raises(JournalWriteError, match="journal: cannot be written: No space left on device"):
            journal.append("close", 1, status="finished", reason="")
    assert journal.ledger.closed is None
    journal.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "runs"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(folder)]
    if subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip("disks cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_study_on_a_disk_that_fills_up(tmp_path: Path, small_disk: Path) -> None:
    study = Study(tmp_path, trials=6, sleep=0.15)
    process = study.run()
    study.wait_until(lambda events: sum(e["e"] == "eval" for e in events) >= 3, process)
    filler = small_disk / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False, capture_output=True)
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 1, text
    assert "tracking.jsonl: cannot be written: No space left on device" in text
    assert f"search resume {study.name}" in text
    assert "Traceback" not in text
    refused = (1, 2)  # the first line of a session may still fit
    for words, codes in ((["status", study.name], (0,)), (["list"], (0,)), (["resume", study.name], refused)):
        code, text = study.command(*words)
        assert code in codes, text
        assert "Traceback" not in text
    filler.unlink()
    code, text = study.command("resume", study.name, "--retry-failed")
    assert code == 0, text
    assert set({e["id"]: e["stop"] for e in study.events() if e["e"] == "end"}.values()) == {"completed"}
    assert set(study.mlflow_states()) == {"FINISHED"}
