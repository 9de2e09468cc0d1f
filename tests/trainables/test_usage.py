"""What a trial takes of the machine, as MLflow is told."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from trainables.training import machine as usage
from trainables.training.machine import CPU, GPU, MEMORY, Usage

pytestmark = pytest.mark.fast


def test_a_core_at_work_is_a_hundred_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, work = iter([10.0, 12.0, 16.0]), iter([1.0, 4.0, 5.0])  # 3 s of work in 2 s, then 1 in 4
    monkeypatch.setattr(usage.time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(usage.time, "process_time", lambda: next(work))
    with Usage(torch.device("cpu")) as used:
        first, second = used.read(), used.read()
    assert (first[CPU], second[CPU]) == (150.0, 25.0)
    assert 20 < first[MEMORY] < 100_000
    assert GPU not in first


def test_a_card_is_asked_while_the_trial_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = itertools.cycle([40, 60])
    monkeypatch.setattr(usage, "SAMPLED_S", 0.002)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: next(busy))  # noqa: ARG005
    with Usage(torch.device("cuda")) as used:
        time.sleep(0.05)
        assert 40 <= used.read()[GPU] <= 60


def test_a_card_that_cannot_be_asked_costs_a_figure_and_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: object) -> int:  # noqa: ARG001
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    with Usage(torch.device("cuda")) as used:
        assert GPU not in used.read()
