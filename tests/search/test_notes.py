"""The notes on MLflow's pages."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness import World, make_space

from search.store.journal import read
from search.store.layout import StudyFolder
from search.store.ledger import Ledger
from search.tracking.runs import study_note, trial_note


def commands(note: str) -> list[list[str]]:
    """The words of the note's last lines, as a shell takes them; the parentheses of a metric it does not take."""
    block = note.split("```")[-2]
    assert "(" not in block
    return [shlex.split(line) for line in block.strip().splitlines()]


def test_a_studys_note_has_range_progress_and_commands(tmp_path: Path) -> None:
    data = {"train": "builtin", "dev": ["stsb", "sickr"], "language": "en"}
    space = make_space({"trials": 6}, data=data, metric={"name": "mean(stsb_dev,sickr_dev)"})
    world = World(space, tmp_path / "my runs")
    before = study_note(space, world.folder)
    assert "So far" not in before
    driver = world.session()
    note = study_note(space, world.folder, driver.ledger)
    assert driver.ledger.best is not None
    assert f"best mean(stsb_dev,sickr_dev) {100 * driver.ledger.best.best:.2f} ({driver.ledger.best.trial.id})" in note
    assert "6 of 6 points" in note
    assert "| `learning_rate` | `{'float': [1e-06, 0.001], 'log': True}` |" in note
    assert "Sampler `random`" in note
    assert commands(note) == [
        ["search", "run", f"{tmp_path}/my runs/fake-1/space.yaml"],
        ["search", "resume", "fake-1", "--storage", f"{tmp_path}/my runs"],
        ["analysis", "best", "--study", "fake-1"],
    ]
    there = StudyFolder("s3://bucket/x", "fake-1")  # `run` reads spaces of this machine
    assert [words[:2] for words in commands(study_note(space, there))] == [["search", "resume"], ["analysis", "best"]]
    replayed = Ledger(maximise=True)
    for event in read(world.folder.journal):
        replayed.apply(event)
    assert study_note(space, world.folder, replayed) == note


def test_a_trials_note_names_its_point_and_its_files(tmp_path: Path) -> None:
    space = make_space({"trials": 2})
    world = World(space, tmp_path)
    world.session()
    start = next(e for e in read(world.folder.journal) if e["e"] == "start")
    note = trial_note(start, space, StudyFolder("s3://bucket/x", "fake-1"))
    assert "point 0, seed 3" in note
    assert "| `batch_size` |" in note
    assert "`s3://bucket/x/fake-1/trials/t0000`" in note
    assert "Confirming trial" in trial_note({**start, "stage": "confirm"}, space, world.folder)
