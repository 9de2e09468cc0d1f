"""Trials of two workers in a real Ray: one warm group for many trials, decisions, faults, a killed worker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from processes import below
from trial_process import RUNG, RUNGS, TrialProcess, ask_for_pause, private_ray, spec_of

from trainables.contract.registry import Plugin

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]  # every group takes ten seconds to start
WORKER = "RayTrainWorker"  # in the title of the processes of a group


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    with private_ray():
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def process(study: Path) -> TrialProcess:
    """One process for the tests of this file, in their order: every start of a group takes ten seconds and more."""
    return TrialProcess(spec_of(study, "first", workers=2))


def workers() -> set[int]:
    """Process ids of this Ray's Train workers."""
    return {p.pid for p in below(os.getpid(), WORKER)}


def until(condition: object, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_group_stays_up_from_trial_to_trial(process: TrialProcess, study: Path) -> None:
    first = process.to_the_end()
    assert first[-1]["stop"] == "completed", first[-1]
    assert [r["rung"] for r in first[:-1]] == [RUNG * k for k in range(1, RUNGS + 1)]
    group = workers()
    assert len(group) == 2

    process.next(spec_of(study, "again", workers=2))
    assert [r["value"] for r in process.to_the_end()[:-1]] == [r["value"] for r in first[:-1]]

    process.next(spec_of(study, "pruned", workers=2))
    process.step()
    process.next(spec_of(study, "cut", workers=2))
    process.step()
    marker = ask_for_pause(study)
    process.next(spec_of(study, "cut", workers=2))
    marker.unlink()
    after = process.to_the_end()
    assert {r["resumed_from"] for r in after[:-1]} == {RUNG}
    assert after[-1]["stop"] == "completed"

    process.next(spec_of(study, "nan", workers=2, learning_rate=1e30, max_grad_norm=0.0))
    assert process.to_the_end()[-1]["stop"] == "failed:nan"
    assert workers() == group


def test_killed_worker_is_an_error_and_the_trial_resumes(process: TrialProcess, study: Path) -> None:
    spec = spec_of(study, "killed", workers=2, checkpoint_seconds=0.0)
    process.next(spec)
    process.step()
    process.step()
    os.kill(max(workers()), signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError, match="worker group crashed"):
        process.to_the_end()
    process.stop()  # as Tune does, before it starts the trial again
    again = TrialProcess(spec)
    results = again.to_the_end()
    assert results[-1]["stop"] == "completed"
    assert results[0]["resumed_from"] >= RUNG

    again.stop()
    assert until(lambda: not workers()), "the group outlived its trial process"
    assert until(lambda: ray.available_resources().get("CPU") == 4), "the group's resources are still reserved"
    assert not list((study / "ray").iterdir())


COUNTED = """
import os
import time
from pathlib import Path

from trainables.contract import Declaration
from trainables.contract.declaration import DevEvaluation
from trainables.methods.method import Method, tokenised_sentences
from trainables.methods.simcse.config import SimcseConfig
from trainables.methods.simcse.method import loss, views

NOTES = Path({notes!r})


def note(what):
    with NOTES.open("a") as file:
        file.write(f"{{what}} {{os.getpid()}}\\n")


def prepare(texts, config, seed, tools):
    def make():
        note("prepared")
        time.sleep(3)
        return 1

    tools.cached("counted", [], make)
    return tokenised_sentences(texts, config, seed, tools)


def evaluate(embed, folder):
    note("scored")
    return {{"texts": float(len(embed(["the dog runs", "a b c"])))}}


METHOD = Method(
    declaration=Declaration(name="counted", config=SimcseConfig, columns="sentences"),
    views=views,
    loss=loss,
    prepare=prepare,
)
EVALUATION = DevEvaluation(name="counter", metrics=("texts",), evaluate=evaluate)
"""


def test_one_worker_prepares_and_scores(tmp_path: Path) -> None:
    """The cache is cold: the other worker waits for the file. The untrained encoder is evaluated once, too."""
    notes = tmp_path / "notes.txt"
    spec = spec_of(tmp_path, "counted", workers=2)
    data = {**spec.data, "evaluations": {"counter": None}}
    plugin = Plugin("counted.py", COUNTED.format(notes=str(notes)))
    process = TrialProcess(replace(spec, method="counted", data=data, plugins=(plugin,)))
    results = process.to_the_end()
    process.stop()
    assert results[-1]["stop"] == "completed", results[-1]
    assert [r["metrics"]["texts_dev"] for r in results[:-1]] == [2.0] * RUNGS
    done = [line.split() for line in notes.read_text().splitlines()]
    assert [what for what, _ in done] == ["prepared"] + ["scored"] * (1 + RUNGS)
    assert len({worker for what, worker in done if what == "scored"}) == 1


def test_failed_group_is_replaced_for_the_next_trial(tmp_path: Path) -> None:
    process = TrialProcess(spec_of(tmp_path, "bad", workers=2, data=str(tmp_path / "nowhere.txt")))
    result = process.to_the_end()[-1]
    assert result["stop"] == "failed:data", result
    process.next(spec_of(tmp_path, "good", workers=2))
    assert process.to_the_end()[-1]["stop"] == "completed"
    process.stop()


def test_killed_trial_process_leaves_nothing(tmp_path: Path) -> None:
    """A group of four on four CPUs: there is nothing to spare, neither for its process nor for a second one."""
    (tmp_path / "ray" / "earlier").mkdir(parents=True)  # of a Ray that is gone
    spec = spec_of(tmp_path, "killed", workers=4, checkpoint_seconds=0.0)
    killed = TrialProcess(spec)
    killed.step()
    assert ray.available_resources().get("CPU", 0.0) == 0.0, "reserved once, not by Tune and by Ray Train"
    os.kill(killed.step()["pid"], signal.SIGKILL)
    killed.free()
    assert until(lambda: not workers())
    again = TrialProcess(spec)
    results = again.to_the_end()
    again.stop()
    assert results[-1]["stop"] == "completed"
    assert results[0]["resumed_from"] >= RUNG
    assert until(lambda: ray.available_resources().get("CPU") == 4)
    assert not list((tmp_path / "ray").iterdir())
