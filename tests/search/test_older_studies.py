"""Studies that other versions wrote: an older one goes on, a newer one is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from harness import World, make_space
from rich.console import Console

from analysis.commands.main import main as analysis
from analysis.reading.store import find_study, open_store
from search import schema
from search.cli.main import main
from search.running.runner import Options, resume_study
from search.running.session import SEARCH, Session
from search.space import SpaceError, load_space
from search.store.journal import Journal, fold, read
from search.store.layout import StudyFolder, UserError
from search.store.ledger import Ledger
from search.tracking.replayer import replay
from search.tracking.tracker import Tracker

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
def test_study_of_an_older_format_is_resumed_confirmed_and_analysed(killed: StudyFolder) -> None:
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


HERE = f"this is {version('contrastive-search')}, which reads formats up to "


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            {"e": "space", "space": {}, "format": 99, "version": "7.1.0"},
            "written by contrastive-search 7.1.0, format 99",
        ),
        ({"e": "start", "id": "t0009", "number": 9, "colour": "red"}, "a start with colour is of a newer version"),
        ({"e": "lost", "id": "t0000"}, "event 'lost' is of a newer version"),
    ],
)
@pytest.mark.parametrize("command", ["status", "resume", "resume --salvage", "confirm"])
def test_a_journal_of_a_newer_format_is_refused(
    killed: StudyFolder, event: dict[str, Any], told: str, command: str
) -> None:
    """In one line that names who wrote it; and nothing of it is set aside."""
    with killed.journal.open("a") as file:
        file.write(json.dumps({"t": 1, **event}) + "\n")
    journal, line = killed.journal.read_bytes(), killed.journal.read_bytes().count(b"\n")
    word, *options = command.split()
    done = CliRunner().invoke(main, [word, "asha-1", *options, "--storage", killed.storage])
    assert done.exit_code == 2
    (said,) = [one for one in done.output.splitlines() if "loading" not in one]
    assert said.startswith(f"{killed.journal}:{line}: {told}")
    assert said.endswith(f"; {HERE}3")
    assert "salvage" not in said
    assert killed.journal.read_bytes() == journal
    assert not list(killed.local.glob("*.damaged-*"))


def test_a_stored_space_of_a_newer_format_is_refused(killed: StudyFolder) -> None:
    text = killed.space.read_text()
    killed.space.write_text(f"{text}colour: red\nwritten_by: {{format: 2, version: 0.3.0}}\n")
    with pytest.raises(
        SpaceError, match=r"written_by: written by contrastive-search 0\.3\.0, format 2; this is"
    ) as told:
        load_space(killed.space, run_code=False)
    assert len(str(told.value).splitlines()) == 1, "what it has more is not a mistake"


def test_key_newer_than_the_study_is_no_edit(tmp_path: Path) -> None:
    """Its default is that of today, in the file and in the journal alike."""
    world = World(make_space({"trials": 2}), tmp_path)
    plain = world.space.resolved()
    del plain["search"]["max_retries"], plain["train"]["checkpoint_seconds"]
    world.folder.local.mkdir()
    world.folder.space.write_text(yaml.safe_dump(plain, sort_keys=False))
    journal = Journal(world.folder.journal, Ledger())
    journal.append("space", space=plain)
    journal.close()
    world.session()
    assert resume_study(str(tmp_path), options=Options(console=Console(quiet=True))).status == "finished"
    world.folder.space.write_text(world.folder.space.read_text().replace("mode: max", "mode: min"))
    with pytest.raises(UserError, match=r"since the study began: metric\.mode: max is now min\. Nothing"):
        resume_study(str(tmp_path))


def test_a_session_names_its_format_in_an_older_journal(killed: StudyFolder) -> None:
    """So that the version that began the study refuses it from there on."""
    journal = Journal(killed.journal, Ledger())
    space = load_space(killed.space)
    session = Session(space, killed, Options(console=Console(quiet=True)), [SEARCH])
    for _ in range(2):
        session._store_space(journal)
    journal.close()
    events = list(read(killed.journal))
    assert [e.get("format") for e in events if e["e"] == "space"] == [None, 3]
    assert load_space(killed.space).resolved() == space.resolved()


@pytest.mark.costly
def test_newer_mlflow_runs_are_neither_read_nor_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    worlds = [World(make_space({"trials": 2}), tmp_path, study=f"fake-{i}", now=1e6 + i) for i in (1, 2)]
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for world in worlds:
        world.session()
        assert replay(Tracker(uri, world.folder, world.space)) == ""
    store = open_store(uri)
    newer = find_study(store, "fake-1")
    assert newer.tags[schema.FORMAT] == "2"
    assert newer.tags[schema.VERSION] == version("contrastive-search")
    store.log(newer.run_id, {schema.FORMAT: "3", schema.VERSION: "7.1.0"})
    told = f"written by contrastive-search 7.1.0, format 3; {HERE}2"
    assert replay(Tracker(uri, worlds[0].folder, worlds[0].space)) == told
    best = CliRunner().invoke(analysis, ["best", "fake-1", "--storage", str(tmp_path)])
    assert (best.exit_code, best.output) == (1, f"analysis: study fake-1: {told}\n")
    assert CliRunner().invoke(analysis, ["best", "fake-2", "--storage", str(tmp_path)]).exit_code == 0
