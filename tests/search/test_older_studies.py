"""Studies that other versions wrote: an older one goes on, a newer one is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import World

from search.space import load_space
from search.store.journal import fold, read
from search.store.layout import StudyFolder, UserError
from search.store.ledger import Ledger

STUDIES = Path(__file__).parents[1] / "studies"


@pytest.fixture
def killed(tmp_path: Path) -> StudyFolder:
    """A study of 011c595, before its first release, whose driver was killed: 5 of 7 trials wait at a rung."""
    shutil.copytree(STUDIES / "011c595", tmp_path / "runs")
    return StudyFolder(str(tmp_path / "runs"), "asha-1")


def test_a_study_of_an_older_format_goes_on(killed: StudyFolder) -> None:
    ledger = fold(killed.journal, Ledger())
    assert [e["e"] for e in read(killed.journal)][:3] == ["space", "session", "start"]
    assert (len(ledger.sessions), len(ledger.trials), len(ledger.waiting())) == (1, 7, 5)
    points = {trial_id: record.trial.point for trial_id, record in ledger.trials.items()}
    world = World(load_space(killed.space), Path(killed.storage), study=killed.study)
    after = world.session().ledger
    assert {trial_id: after.trials[trial_id].trial.point for trial_id in points} == points
    assert len(after.points) == 14
    assert world.session(confirm=6).ledger.stages["confirm"] == "finished"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_study_of_an_older_format_is_resumed_confirmed_and_analysed(killed: StudyFolder) -> None:
    def command(*words: str) -> str:
        environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{killed.storage}/mlflow.db"}
        line = [str(Path(sys.executable).parent / words[0]), *words[1:]]
        return subprocess.run(line, env=environment, check=True, capture_output=True, text=True, timeout=600).stdout

    command("search", "resume", "asha-1", "--storage", killed.storage)
    command("search", "confirm", "asha-1", "--trials", "4", "--storage", killed.storage)
    found = json.loads(command("analysis", "best", "--study", "asha-1", "--format", "json"))
    ends = {e["id"]: e["best"] for e in read(killed.journal) if e["e"] == "end"}
    assert ends["t0001"] == pytest.approx(0.4599, abs=5e-5), "the value that 011c595 itself found"
    assert found["rows"][0]["confirmed"]


def test_a_journal_of_a_newer_format_is_refused(killed: StudyFolder) -> None:
    event = {"e": "space", "t": 1, "space": {}, "format": 99, "version": "7.1.0"}
    killed.journal.write_text(json.dumps(event) + "\n")
    with pytest.raises(UserError, match=r"tracking\.jsonl: written by contrastive-search 7\.1\.0 in format 99"):
        fold(killed.journal, Ledger())
