"""The body of a script's trial: what the script gets, what it reports, and how it ends, is resumed and fails."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from trainables.contract.registry import Plugin
from trainables.contract.trial import MODEL, SCRIPT_STATE, TRIAL, Evaluation, Outcome, TrialSpec, Verdict
from trainables.training.trial import run_trial

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
        verdict = report(100 * step, {"x_dev": value, "loss": 1.0}, of=400, model=write, checkpoint=state)
        if verdict != "go":
            return
"""


def spec_of(folder: str, text: str = STEPS, **changes: Any) -> TrialSpec:
    given: dict[str, Any] = {
        "method": "script", "encoder": "", "data": {"train": "", "dev": []}, "metric": "x_dev", "seed": 3,
        "params": {"rate": 0.5}, "folder": folder, "script": Plugin("train.py", textwrap.dedent(text)),
    }  # fmt: skip
    return TrialSpec(**{**given, **changes})


class Told:
    """Keeps evaluations and gives the verdict that is asked for at some of them."""

    def __init__(self, **verdicts: Verdict) -> None:
        self.seen: list[Evaluation] = []
        self._verdicts = {int(name[1:]): verdict for name, verdict in verdicts.items()}

    def __call__(self, evaluation: Evaluation) -> Verdict:
        self.seen.append(evaluation)
        return self._verdicts.get(evaluation.examples, "go")


def run(spec: TrialSpec, told: Callable[[Evaluation], Verdict] | None = None, **more: Any) -> Outcome:
    return run_trial(spec, told or Told(), **more)


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


def test_a_whole_trial_and_the_model_of_its_best_evaluation(folder: str) -> None:
    told = Told()
    outcome = run(spec_of(folder), told)
    assert (outcome.stop, outcome.best, outcome.best_at, outcome.examples) == ("completed", 0.4, 200, 400)
    assert [(e.rung, e.examples, e.value, e.best, e.planned) for e in told.seen] == [
        (100, 100, 0.1, 0.1, 400), (200, 200, 0.4, 0.4, 400), (300, 300, 0.3, 0.4, 400), (400, 400, 0.2, 0.4, 400),
    ]  # fmt: skip
    assert told.seen[0].metrics == {"x_dev": 0.1, "loss": 1.0}
    assert content(folder, f"{MODEL}/weights") == "2"
    assert json.loads(content(folder, TRIAL))["best"]["examples"] == 200
    again = Told()
    assert run(spec_of(folder), again).best == 0.4  # its end was lost on the way: nothing is trained twice
    assert again.seen == []


@pytest.mark.parametrize("verdict", ["prune", "pause"])
def test_it_ends_where_it_is_told_to_and_a_paused_one_goes_on(folder: str, verdict: Verdict) -> None:
    outcome = run(spec_of(folder), Told(e300=verdict))
    assert (outcome.stop, outcome.examples) == ({"prune": "pruned", "pause": "paused"}[verdict], 300)
    assert there(folder, SCRIPT_STATE)  # until the study knows how it ended
    told = Told()
    again = run(spec_of(folder), told)
    assert (again.stop, again.best, again.best_at, again.examples) == ("completed", 0.4, 200, 400)
    assert [(e.examples, e.resumed_from, e.best) for e in told.seen] == [(400, 300, 0.4)]
    assert again.seconds > outcome.seconds


def test_a_death_costs_what_came_after_the_last_state(folder: str) -> None:
    class Death(BaseException):
        pass

    def dies(evaluation: Evaluation) -> Verdict:
        if evaluation.examples == 300:
            raise Death
        return "go"

    late = STEPS.replace("checkpoint=state)", "checkpoint=state if step < 3 else None)")
    with pytest.raises(Death):
        run(spec_of(folder, late), dies)
    told = Told()
    assert run(spec_of(folder, late), told).stop == "completed"
    assert [e.examples for e in told.seen] == [300, 400]
    assert {e.resumed_from for e in told.seen} == {200}


def test_without_its_best_model_it_starts_anew(folder: str) -> None:
    run(spec_of(folder), Told(e300="pause"))
    filesystem, path = fsspec.core.url_to_fs(f"{folder}/{MODEL}")
    filesystem.rm(path, recursive=True)
    told = Told()
    run(spec_of(folder), told)
    assert [e.examples for e in told.seen] == [100, 200, 300, 400]


def test_one_that_goes_on_when_told_to_end_is_ended(tmp_path: Path) -> None:
    stubborn = STEPS.replace('if verdict != "go":\n            return', "pass")
    told = Told(e200="prune")
    outcome = run(spec_of(str(tmp_path / "t"), stubborn), told)
    assert (outcome.stop, outcome.examples, len(told.seen)) == ("pruned", 200, 2)


def test_an_interrupted_study_is_heard_between_evaluations(tmp_path: Path) -> None:
    script = """
        def train(config, report):
            report(10, {"x_dev": 0.5}, of=30)
            assert report.pausing()
    """
    outcome = run(spec_of(str(tmp_path / "t"), script), pausing=lambda: True)
    assert (outcome.stop, outcome.best) == ("paused", 0.5)


def test_evaluations_of_any_batch_size_stand_on_the_same_rungs(tmp_path: Path) -> None:
    script = """
        def train(config, report):
            for k in range(1, 4):
                report(k * 48 * 4, {"x_dev": 0.5}, of=576)
    """
    told = Told()
    run(spec_of(str(tmp_path / "t"), script, params={"eval_examples": 200}), told)
    assert [(e.rung, e.examples) for e in told.seen] == [(200, 192), (400, 384), (600, 576)]


def test_what_the_script_gets(tmp_path: Path) -> None:
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
        ("report(1.5, {'x_dev': 1})", "failed:error", "ValueError: report: expected training examples so far, a whole "
         "number above the 0 of the evaluation before, got 1.5"),
        ("report(2, {'x_dev': 1}); report(2, {'x_dev': 1})", "failed:error", "ValueError: report: expected training "
         "examples so far, a whole number above the 2 of the evaluation before, got 2"),
        ("report(1, {'x_dev': 1}, checkpoint='/tmp')", "failed:error", "ValueError: checkpoint: expected a file or "
         "folder in {folder}/last/script, got /tmp"),
        ("import sys; sys.exit(2)", "failed:error", "RuntimeError: the script called sys.exit(2)"),
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
def test_what_is_no_exception_is_a_fault_of_the_script_all_the_same(tmp_path: Path, raises: str, reason: str) -> None:
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


def test_a_signal_ends_whoever_trains_in_the_main_thread(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        failed(tmp_path, "raise KeyboardInterrupt")
