"""A study of a script on a real Ray: pruned, killed as a driver and as a trial, resumed, named and exported."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from driver_sessions import Study, ended, kill
from processes import below, sigkill

from analysis.commands.main import main as analysis

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 9  # evaluations of a trial, 100 examples apart
SCRIPT = '''
"""No training: a value by formula. Every step and every beginning is written down."""
import json, os, time
from pathlib import Path

STEPS = 9

def train(config, report):
    step = json.loads(Path(config["resume"]).read_text())["step"] if config["resume"] else 0
    trial = Path(config["checkpoints"]).parents[1].name
    notes = Path(config["notes"])
    def note(line):
        with notes.open("a") as file:
            file.write(f"{trial} {line}\\n")
    note(f"begun {step}")
    while step < STEPS:
        time.sleep(0.15)
        if report.pausing():
            return
        step += 1
        note(f"step {step}")
        value = 1 - abs(config["rate"] - 0.3) - 1 / (1 + step)
        def write(folder):
            os.makedirs(folder)
            Path(folder, "weights.json").write_text(json.dumps({"rate": config["rate"], "step": step}))
        state = Path(config["checkpoints"], f"{step}.json")
        state.write_text(json.dumps({"step": step}))
        if report(100 * step, {"x_dev": value}, of=100 * STEPS, model=write, checkpoint=state) != "go":
            return
'''


def study_of(root: Path, **changes: Any) -> Study:
    study = Study(root)
    study.program = [sys.executable, "-m", "search"]
    (root / "train.py").write_text(SCRIPT, encoding="utf-8")
    space = {
        "name": "study", "method": "script", "script": "train.py", "metric": {"name": "x_dev"},
        "params": {"rate": {"float": [0.0, 1.0]}, "notes": str(root / "notes.txt")},
        "preset": {"rate": 0.5},
        "search": {"sampler": "random", "trials": 6, "seed": 1},
        "pruner": {"kind": "asha"}, "resources": {"cpus": 1},
    }  # fmt: skip
    study.file.write_text(yaml.safe_dump(space | changes), encoding="utf-8")
    return study


def kill_trials(driver: int) -> None:
    """SIGKILL to every process that runs a trial; there is one."""
    names = ("ray::TrialJob", "ray::ResourceTr")  # at first, and once Tune has set what it reserves
    running = below(driver, *names)
    assert running
    sigkill(running)


@pytest.mark.parametrize("pruner", ["asha", "successive_halving"])
def test_killed_twice_every_point_runs_once_and_resumes(tmp_path: Path, pruner: str) -> None:
    study = study_of(tmp_path, pruner={"kind": pruner})
    first = study.run()
    study.wait_until(lambda events: sum(e["e"] == "eval" for e in events) >= 4, first)
    kill(first)
    second = study.start("resume", "study")
    study.wait_until(ended(1), second)
    study.wait_until(lambda events: events[-1]["e"] == "eval", second)
    kill_trials(second.pid)
    text, _ = second.communicate(timeout=200)
    assert second.returncode == 0, text
    ends = study.ends()
    assert len(ends) == 6
    assert set(ends.values()) <= {"completed", "pruned"}
    assert {"completed", "pruned"} <= set(ends.values())
    notes = [line.split() for line in (tmp_path / "notes.txt").read_text().splitlines()]
    steps = Counter((trial, int(n)) for trial, word, n in notes if word == "step")
    assert max(steps.values()) <= 3  # a crash costs the step that was under way, of up to two trials
    assert sum(count - 1 for count in steps.values()) <= 4
    begun = [int(n) for _, word, n in notes if word == "begun"]
    assert len(begun) > 6
    assert any(begun)  # some went on, and not from the beginning

    options = ["--study", "study", "--storage", str(study.storage)]
    best = CliRunner().invoke(analysis, ["best", *options], catch_exceptions=False)
    assert best.exit_code == 0
    assert "the space's preset" in best.stdout
    assert "Values are x_dev as the script reports it, x 100." in best.stdout
    assert "analysis export study" in best.stdout
    out = tmp_path / "model"
    exported = CliRunner().invoke(analysis, ["export", *options, "--out", str(out)], catch_exceptions=False)
    assert exported.exit_code == 0, exported.output
    assert {path.name for path in out.iterdir()} == {"README.md", "weights.json"}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "Sentence vectors by script `train.py`, chosen by `x_dev`" in card
    assert "x_dev is given as it was reported." in card
    test = CliRunner().invoke(analysis, ["test", *options, "--reason", "why"], catch_exceptions=False)
    assert (test.exit_code, "a script trained it" in test.stderr) == (1, True)


def test_script_without_a_model_has_nothing_to_export(tmp_path: Path) -> None:
    study = study_of(tmp_path, search={"sampler": "random", "trials": 2, "seed": 1})
    (tmp_path / "train.py").write_text(SCRIPT.replace("model=write, ", "").replace("0.15", "0"), encoding="utf-8")
    first = study.run()
    text, _ = first.communicate(timeout=200)
    assert first.returncode == 0, text
    options = ["--study", "study", "--storage", str(study.storage)]
    best = CliRunner().invoke(analysis, ["best", *options], catch_exceptions=False)
    assert "Weights  none: the script saves no model" in " ".join(best.stdout.split("  "))
    exported = CliRunner().invoke(analysis, ["export", *options], catch_exceptions=False)
    assert exported.exit_code == 1
    assert "the script of study saved no model: there is nothing to export or test" in exported.stderr
