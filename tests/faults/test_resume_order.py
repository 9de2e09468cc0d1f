"""`resume` takes up whatever is open or newly allowed, the search before its confirming."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_sessions import Study, ended, kill

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_a_search_killed_before_its_confirming_is_taken_up_again(tmp_path: Path) -> None:
    study = Study(tmp_path, trials=8)
    process = study.run()
    study.wait_until(ended(3), process)
    kill(process)
    code, text = study.command("confirm", study.name, "--top", "1", "--seeds", "2")
    assert code == 0, text
    assert len(study.ends("confirm")) == 2
    _, text = study.command("status", study.name)
    assert "finished" not in text.splitlines()[0], text
    assert "search resume" in text
    _, listed = study.command("list")
    assert "finished" not in listed, listed
    code, text = study.command("resume", study.name)
    assert code == 0, text
    assert "8 of 8 points" in text
    assert len(study.ends()) == 8
    assert set(study.mlflow_states()) == {"FINISHED"}


@pytest.mark.slow
def test_a_larger_budget_after_confirming(tmp_path: Path) -> None:
    study = Study(tmp_path, trials=3)
    assert study.run().wait(timeout=240) == 0
    assert study.command("confirm", study.name, "--top", "1", "--seeds", "2")[0] == 0
    code, text = study.command("resume", study.name, "--set", "search.trials=5")
    assert code == 0, text
    assert len(study.ends()) == 5


@pytest.mark.slow
def test_an_interrupted_confirming_goes_on_after_the_search(tmp_path: Path) -> None:
    study = Study(tmp_path, trials=3, sleep=0.2)
    process = study.run()
    assert process.wait(timeout=240) == 0
    process = study.start("confirm", study.name, "--top", "2", "--seeds", "3")
    study.wait_until(ended(4), process)
    kill(process)
    code, text = study.command("resume", study.name)
    assert code == 0, text
    assert len(study.ends("confirm")) == 6
    assert set(study.mlflow_states()) == {"FINISHED"}
