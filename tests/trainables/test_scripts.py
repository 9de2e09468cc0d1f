"""Script trials: what the script gets, what it reports, how the trial ends, resumes and fails."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from trainables.contract.registry import Plugin
from trainables.contract.trial import (
    DEVICE_MEMORY,
    MODEL,
    SCRIPT_STATE,
    TRIAL,
    Decision,
    Evaluation,
    Outcome,
    TrialSpec,
)
from trainables.scripts.trial import train_by_script
from trainables.training.distributed import World
from trainables.training.trial import ProcessCache, run_trial

pytestmark = pytest.mark.costly  # torch is loaded

STEPS = """
import json
from pathlib import Path

def train(config, report):
    begun = 0
    if config["resume"]:
        begun = json.loads(Path(config["resume"], "step.json").read_text())
    print("begun at", begun)
    for step in range(begun + 1, 5):
        value = [0.0, 0.1, 0.4, 0.3, 0.2][step]
        state = Path(config["checkpoints"], f"at-{step}")
        state.mkdir(exist_ok=True)
        (state / "step.json").write_text(str(step))
        def write(folder):
            Path(folder).mkdir(parents=True)
            Path(folder, "weights").write_text(str(step))
        decision = report(100 * step, {"x_dev": value, "loss": 1.0}, of=400, model=write, checkpoint=state)
        if decision != "go":
            return
"""


def spec_of(folder: str, text: str = STEPS, **changes: Any) -> TrialSpec:
    given: dict[str, Any] = {
        "method": "script", "encoder": "", "data": {"train": "", "dev": []}, "metric": "x_dev", "seed": 3,
        "params": {"rate": 0.5}, "folder": folder, "script": Plugin("train.py", textwrap.dedent(text)),
    }  # fmt: skip
    return TrialSpec(**{**given, **changes})


class Report:
    """Records evaluations; the decision at some examples is given."""

    def __init__(self, **decisions: Decision) -> None:
        self.seen: list[Evaluation] = []
        self._decisions = {int(name[1:]): decision for name, decision in decisions.items()}

    def __call__(self, evaluation: Evaluation) -> Decision:
        self.seen.append(evaluation)
        return self._decisions.get(evaluation.examples, "go")


def run(spec: TrialSpec, report: Callable[[Evaluation], Decision] | None = None, **more: Any) -> Outcome:
    return run_trial(spec, report or Report(), **more)


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a trial, on the disk and behind a URI."""
    return f"{tmp_path}/runs/s/trials/t0" if request.param == "local" else f"memory://{tmp_path.name}/s/trials/t0"


def there(folder: str, name: str) -> bool:
    filesystem, path = fsspec.core.url_to_fs(f"{folder}/{name}")
    return bool(filesystem.exists(path))


def content(folder: str, name: str) -> str:
    with fsspec.open(f"{folder}/{name}", "rt") as file:
        return str(file.read())


def test_full_trial_saves_the_model_of_its_best(folder: str) -> None:
    report = Report()
    outcome = run(spec_of(folder), report)
    assert (outcome.stop, outcome.best, outcome.best_at, outcome.examples) == ("completed", 0.4, 200, 400)
    assert [(e.rung, e.examples, e.value, e.best, e.planned) for e in report.seen] == [
        (100, 100, 0.1, 0.1, 400), (200, 200, 0.4, 0.4, 400), (300, 300, 0.3, 0.4, 400), (400, 400, 0.2, 0.4, 400),
    ]  # fmt: skip
    assert report.seen[0].metrics == {"x_dev": 0.1, "loss": 1.0}
    assert content(folder, f"{MODEL}/weights") == "2"
    assert json.loads(content(folder, TRIAL))["best"]["examples"] == 200
    again = Report()
    assert run(spec_of(folder), again).best == 0.4  # its end was lost on the way: nothing is trained twice
    assert again.seen == []


@pytest.mark.parametrize("decision", ["prune", "pause"])
def test_trial_ends_at_its_decision_and_can_resume(folder: str, decision: Decision) -> None:
    outcome = run(spec_of(folder), Report(e300=decision))
    assert (outcome.stop, outcome.examples) == ({"prune": "pruned", "pause": "paused"}[decision], 300)
    assert there(folder, SCRIPT_STATE)  # until the study has recorded its end
    report = Report()
    again = run(spec_of(folder), report)
    assert (again.stop, again.best, again.best_at, again.examples) == ("completed", 0.4, 200, 400)
    assert [(e.examples, e.resumed_from, e.best) for e in report.seen] == [(400, 300, 0.4)]
    assert again.seconds > outcome.seconds


def test_crash_costs_what_came_after_the_last_state(folder: str) -> None:
    class Crash(BaseException):
        pass

    def crashes(evaluation: Evaluation) -> Decision:
        if evaluation.examples == 300:
            raise Crash
        return "go"

    late = STEPS.replace("checkpoint=state)", "checkpoint=state if step < 3 else None)")
    with pytest.raises(Crash):
        run(spec_of(folder, late), crashes)
    report = Report()
    assert run(spec_of(folder, late), report).stop == "completed"
    assert [e.examples for e in report.seen] == [300, 400]
    assert {e.resumed_from for e in report.seen} == {200}


def test_without_its_best_model_it_starts_again(folder: str) -> None:
    run(spec_of(folder), Report(e300="pause"))
    filesystem, path = fsspec.core.url_to_fs(f"{folder}/{MODEL}")
    filesystem.rm(path, recursive=True)
    report = Report()
    run(spec_of(folder), report)
    assert [e.examples for e in report.seen] == [100, 200, 300, 400]


def test_script_that_ignores_its_decision_is_ended(tmp_path: Path) -> None:
    stubborn = STEPS.replace('if decision != "go":\n            return', "pass")
    report = Report(e200="prune")
    outcome = run(spec_of(str(tmp_path / "t"), stubborn), report)
    assert (outcome.stop, outcome.examples, len(report.seen)) == ("pruned", 200, 2)


def test_interrupted_study_pauses_between_evaluations(tmp_path: Path) -> None:
    script = """
        def train(config, report):
            report(10, {"x_dev": 0.5}, of=30)
            assert report.pausing()
    """
    outcome = run(spec_of(str(tmp_path / "t"), script), pausing=lambda: True)
    assert (outcome.stop, outcome.best) == ("paused", 0.5)


def test_rungs_are_equal_for_all_batch_sizes(tmp_path: Path) -> None:
    script = """
        def train(config, report):
            for k in range(1, 4):
                report(k * 48 * 4, {"x_dev": 0.5}, of=576)
    """
    report = Report()
    run(spec_of(str(tmp_path / "t"), script, params={"eval_examples": 200}), report)
    assert [(e.rung, e.examples) for e in report.seen] == [(200, 192), (400, 384), (600, 576)]


def test_config_of_the_script(tmp_path: Path) -> None:
    script = """
        import random
        import numpy, torch

        def train(config, report):
            drawn = random.random() + float(numpy.random.rand()) + float(torch.rand(()))
            assert config.pop("checkpoints").endswith("/last/script")
            assert config == {
                "rate": 0.5, "seed": config["seed"], "encoder": "some/encoder", "device": "cpu", "resume": None,
                "data": {"train": "wiki", "dev": ["stsb"], "language": "en"},
            }
            report(1, {"a_dev": drawn, "b_dev": 0.0})
    """
    data = {"train": "wiki", "dev": ["stsb"], "language": "en", "parser": None}
    spec = spec_of(str(tmp_path / "t"), script, metric="mean(a_dev,b_dev)", data=data, encoder="some/encoder")
    first, again = run(spec), run(spec)
    assert (first.stop, first.reason) == ("completed", "")
    assert first.best == again.best
    assert first.best != run(spec_of(str(tmp_path / "u"), script, metric="mean(a_dev,b_dev)", seed=4)).best


def failed(tmp_path: Path, body: str, **changes: Any) -> tuple[str, str]:
    script = "def train(config, report):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    outcome = run(spec_of(str(tmp_path / "t"), script, **changes))
    return outcome.stop, outcome.reason


@pytest.mark.parametrize(
    ("body", "stop", "reason"),
    [
        ("pass", "failed:error", "PluginError: train.py: returned without a report"),
        ("report(1, {'y_dev': 1})", "failed:error", "PluginError: report: expected x_dev, which selects, got y_dev"),
        ("report(1, {'x_dev': float('nan')})", "failed:nan", "x_dev is nan after 1 training examples"),
        ("report(0, {'x_dev': 1})", "failed:error", "ValueError: report: expected training examples so far, a whole "
         "number above the 0 of the evaluation before, got 0"),
        ("report(2, {'x_dev': 1}); report(2, {'x_dev': 1})", "failed:error", "ValueError: report: expected training "
         "examples so far, a whole number above the 2 of the evaluation before, got 2"),
        ("report(1, {'x_dev': 1}, checkpoint='/tmp')", "failed:error", "ValueError: checkpoint: expected a file or "
         "folder in {folder}/last/script, got /tmp"),
        ("1 / 0", "failed:error", "ZeroDivisionError: division by zero"),
        ("raise OSError(28, 'full')", "failed:disk", "[Errno 28] full"),
        ("raise MemoryError('no room')", "failed:oom", "no room"),
    ],
)  # fmt: skip
def test_faults_are_outcomes_with_one_line(tmp_path: Path, body: str, stop: str, reason: str) -> None:
    assert failed(tmp_path, body) == (stop, reason.format(folder=tmp_path / "t"))


@pytest.mark.parametrize(
    ("raises", "reason"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit('at once')", "GeneratorExit: at once"),
        ("import asyncio; asyncio.run(cancelled())", "CancelledError"),
        ("raise SystemExit(2)", "RuntimeError: the script called sys.exit(2)"),
    ],
)
def test_base_exceptions_are_faults_of_the_script(tmp_path: Path, raises: str, reason: str) -> None:
    """Trials run in a thread, where no signal arrives; what it had reached was lost."""
    script = f"""
        async def cancelled():
            import asyncio
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

        def train(config, report):
            report(10, {{"x_dev": 0.5}})
            {raises}
    """
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(run, spec_of(str(tmp_path / "t"), script)).result()
    assert (outcome.stop, outcome.reason, outcome.best, outcome.examples) == ("failed:error", reason, 0.5, 10)
    assert 'File "train.py", line 9, in train' in outcome.traceback


def test_signal_ends_training_in_the_main_thread(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        failed(tmp_path, "raise KeyboardInterrupt")


def test_trial_reports_no_gpu_peak_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peak = [7e9]  # of the trial before
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: peak[-1])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda *_: peak.append(1e9))
    spec = replace(spec_of(str(tmp_path), "def train(config, report): report(1, {'x_dev': 1})"), gpus=1.0)
    report = Report()
    train_by_script(spec, report, World(device=torch.device("cuda")), ProcessCache(), lambda: False)
    assert [e.metrics[DEVICE_MEMORY] for e in report.seen] == [1.0]
