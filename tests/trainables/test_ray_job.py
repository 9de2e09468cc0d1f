"""Trials of one worker in a real Ray: warm reuse, decisions, faults, and the parts of Ray this leans on."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import ray.train
import torch
from trial_process import RUNG, RUNGS, TrialProcess, ask_for_pause, private_ray, spec_of

from trainables.on_ray.messages import PHASE
from trainables.on_ray.trainable import InProcess, placement
from trainables.training.checkpoint import TrialFiles
from trainables.training.machine import CPU, MEMORY

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialProcess]:
    """A process that has run one trial."""
    with private_ray():
        process = TrialProcess(spec_of(tmp_path_factory.mktemp("warm"), "t0"))
        process.to_the_end()
        yield process
        process.stop()


def test_trials_reuse_one_process(process: TrialProcess, tmp_path: Path) -> None:
    pids, seconds, values = set(), [], []
    for name in ("a", "b"):
        process.next(spec_of(tmp_path, name, seed=5))
        started = time.perf_counter()
        results = process.to_the_end()
        seconds.append(time.perf_counter() - started)
        pids.update(r["pid"] for r in results)
        values.append([r["value"] for r in results[:-1]])
        assert [r["rung"] for r in results[:-1]] == [RUNG * k for k in range(1, RUNGS + 1)]
        assert (results[-1]["stop"], results[-1]["examples"]) == ("completed", RUNG * RUNGS)
        assert results[-1]["best"] == max(values[-1])
        assert TrialFiles(str(tmp_path / "trials" / name)).load_best()[1]["best"]["value"] == results[-1]["best"]
    assert len(pids) == 1
    assert values[0] == values[1]  # nothing of a trial is left in the process: same seed, same values


def test_stopped_trial_is_pruned_where_it_was_judged(process: TrialProcess, tmp_path: Path) -> None:
    process.next(spec_of(tmp_path, "a"))
    process.step()
    judged = process.step()
    process.next(spec_of(tmp_path, "b"))
    assert process.to_the_end()[-1]["stop"] == "completed"
    weights = TrialFiles(str(tmp_path / "trials" / "a"))
    assert weights.load_best()[1]["best"]["examples"] <= judged["examples"] == 2 * RUNG
    assert weights.load_last() is None


def test_stop_before_the_first_evaluation_spares_the_next_trial(process: TrialProcess, tmp_path: Path) -> None:
    """Messages about phases want no answer: one given all the same would stop the next trial."""
    process.next(spec_of(tmp_path, "a", seed=7))
    assert PHASE in ray.get(process.actor.train.remote(), timeout=240)
    process.next(spec_of(tmp_path, "b", seed=7))
    results = process.to_the_end()
    assert (results[-1]["stop"], len(results)) == ("completed", RUNGS + 1)


def test_paused_trial_resumes_where_it_stopped(process: TrialProcess, tmp_path: Path) -> None:
    process.next(spec_of(tmp_path, "straight"))
    straight = process.to_the_end()
    process.next(spec_of(tmp_path, "cut"))
    before = process.step()
    marker = ask_for_pause(tmp_path)
    process.next(spec_of(tmp_path, "cut"))  # Tune stops the trial; its process gets the next one
    marker.unlink()
    after = process.to_the_end()
    assert {r["resumed_from"] for r in after[:-1]} == {RUNG}
    assert before["place"].startswith(f"{socket.gethostname()}, CPU ")
    assert [bool(r["place"]) for r in after[:-1]] == [True, *[False] * (len(after) - 2)]  # once in a session
    assert all(
        0 < r["metrics"][CPU] < 100 * (os.cpu_count() or 1) + 50 and r["metrics"][MEMORY] > 50 for r in after[:-1]
    )
    assert [r["value"] for r in [before, *after[:-1]]] == [r["value"] for r in straight[:-1]]


def test_fault_is_an_outcome_and_the_process_stays(process: TrialProcess, tmp_path: Path) -> None:
    pid = None
    for spec, stop, reason in (
        (spec_of(tmp_path, "nan", learning_rate=1e30, max_grad_norm=0.0), "failed:nan", "the loss is"),
        (spec_of(tmp_path, "data", data=str(tmp_path / "nowhere.txt")), "failed:data", "nowhere.txt"),
        (spec_of(tmp_path, "good"), "completed", ""),
    ):
        process.next(spec)
        result = process.to_the_end()[-1]
        assert result["stop"] == stop, result
        assert reason in result["reason"]
        assert pid in (None, result["pid"])
        pid = result["pid"]


def test_trial_reserves_its_workers_and_nothing_for_its_process() -> None:
    """Then Tune requests all of a growing cluster at once, and the process is not put on a head without CPUs."""
    assert placement(1, 1.5, 0.0).bundles == [{"CPU": 1.5}]
    group = placement(2, 1.0, 0.5, ["broken"])
    assert group.bundles == [{"CPU": 1.0, "GPU": 0.5}] * 2
    assert group.head_bundle_is_empty
    assert group != placement(2, 1.0, 0.5)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def without_text(_: object) -> None:
    raise Unprintable


def test_thread_that_crashes_is_a_failed_trial(
    process: TrialProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that cannot be reported ends the thread outside of every handler."""
    del process  # whose Ray this uses
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    spec = spec_of(tmp_path, "t")
    host = InProcess(spec)
    monkeypatch.setattr(host, "_run", without_text)
    host.begin(spec)
    message = host.receive()
    assert (message["done"], message["stop"]) == (True, "failed:error")
    assert "without a result" in message["reason"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a usable GPU")
def test_gpu_that_torch_cannot_use_is_a_device_fault(process: TrialProcess, tmp_path: Path) -> None:
    del process
    spec = replace(spec_of(tmp_path, "t"), gpus=1.0)
    host = InProcess(spec)
    host.begin(spec)
    message = host.receive()
    assert message["stop"] == "failed:device"
    assert "torch cannot use the GPU that Ray reserved" in message["reason"]
