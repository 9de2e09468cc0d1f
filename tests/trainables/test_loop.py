"""The training loop on a toy method: cadence, decisions, the best-checkpoint rule, resuming, faults."""

from __future__ import annotations

import errno
import math
import shutil
import threading
import time
import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import toy
from torch import nn
from torch.overrides import TorchFunctionMode

from trainables.contract.trial import SIMILARITIES, STATE, STEP_SECONDS, TRIAL, WEIGHTS
from trainables.methods.simcse.config import SimcseConfig
from trainables.training import loop
from trainables.training.checkpoint import Snapshot, TrialFiles
from trainables.training.distributed import World
from trainables.training.loop import Training, first_batches
from trainables.training.trial import TrainingFailure


def config_of(**changes):
    return SimcseConfig(**{"batch_size": 16, "learning_rate": 1e-2, "epochs": 4, "eval_examples": 64, **changes})


def session(
    folder, config=None, decisions=None, evaluate=toy.evaluate, seed=0, pausing=lambda: False, files=TrialFiles
):
    """One session of a toy trial: (outcome, evaluations). `decisions` maps the rung to something other than go."""
    config, seen = config or config_of(), []

    def report(evaluation):
        seen.append(evaluation)
        return (decisions or {}).get(evaluation.rung, "go")

    return training_of(folder, config, evaluate, seed, pausing, files).run(report), seen


def training_of(folder, config, evaluate=toy.evaluate, seed=0, pausing=lambda: False, files=TrialFiles):
    return Training(
        method=toy.METHOD, config=config, network=toy.ToyNetwork(config, seed), examples=toy.examples(),
        evaluate=evaluate, seed=seed, files=files(str(folder)), pausing=pausing,
    )  # fmt: skip


def numbers(evaluations):
    return [(e.rung, e.examples, e.value, e.metrics["loss"]) for e in evaluations]


@pytest.mark.parametrize(
    ("changes", "rungs"),
    [
        ({"epochs": 2, "eval_examples": 48}, [(48, 48), (96, 96), (144, 128)]),  # and at the end
        ({"epochs": 2, "batch_size": 24, "eval_examples": 32}, [(32, 48), (64, 64), (96, 112), (128, 128)]),
        ({"epochs": 2, "eval_examples": 10, "eval_steps": 4}, [(64, 64), (128, 128)]),  # wins over eval_examples
        # batches of 24, 24, 16: eval_steps are steps, and an epoch's last batch delays no evaluation
        ({"batch_size": 24, "eval_steps": 3}, [(72, 64), (144, 128), (216, 192), (288, 256)]),
        ({"epochs": 9, "max_examples": 40, "eval_examples": 1000}, [(1000, 48)]),  # the batch that reaches 40 is last
    ],
)
def test_rungs_are_equal_for_all_batch_sizes(changes, rungs, tmp_path):
    outcome, seen = session(tmp_path, config_of(**changes))
    assert [(e.rung, e.examples) for e in seen] == rungs
    assert (outcome.stop, outcome.examples) == ("completed", rungs[-1][1])
    assert [e.metrics.get("f") for e in seen] == [1.0, *[None] * (len(seen) - 1)]  # facts are logged once


def test_best_evaluation_is_saved(tmp_path):
    outcome, seen = session(tmp_path, config_of(learning_rate=0.5, epochs=6, eval_examples=16))
    best = max(seen, key=lambda e: e.value)
    assert (outcome.best, outcome.best_at) == (best.value, best.examples)
    weights, trial = TrialFiles(str(tmp_path)).load_best()
    network = toy.ToyNetwork(SimcseConfig(), 1)
    network.load_state_dict(weights)
    network.eval()
    assert toy.evaluate(network.embed)[0] == pytest.approx(best.value, abs=1e-6)
    assert trial["best"]["examples"] == best.examples
    assert TrialFiles(str(tmp_path)).load_last() is None


def test_pruned_where_judged(tmp_path):
    outcome, seen = session(tmp_path, decisions={128: "prune"})
    assert outcome.stop == "pruned"
    assert seen[-1].rung == outcome.examples == 128


@pytest.mark.parametrize("changes", [{}, {"batch_size": 24, "eval_steps": 3}, {"precision": "fp16"}], ids=str)
def test_paused_trial_resumes_with_equal_results(changes, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "FIRST_SCALE", 2.0**30)  # of fp16: the first steps are skipped, and the scale falls
    config = config_of(**changes)
    whole, straight = session(tmp_path / "whole", config)
    first, before = session(tmp_path / "cut", config, decisions={straight[1].rung: "pause"})
    assert first.stop == "paused"
    second, after = session(tmp_path / "cut", config)
    assert numbers(before + after) == numbers(straight)
    assert (second.best, second.best_at, second.stop) == (whole.best, whole.best_at, "completed")
    assert {e.resumed_from for e in after} == {128}
    a, b = (TrialFiles(str(tmp_path / name)).load_best()[0] for name in ("whole", "cut"))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_overflowing_fp16_step_is_skipped_and_the_scale_halved(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "FIRST_SCALE", 2.0**60)
    config = config_of(precision="fp16", weight_decay=0.1, dropout=0.0, max_grad_norm=0.0)
    training = training_of(tmp_path, config)
    before = {name: weight.clone() for name, weight in training.network.named_parameters()}
    training._step(training.batches[0])
    assert training.scaler.get_scale() == 2.0**59
    assert all(torch.equal(weight, before[name]) for name, weight in training.network.named_parameters())
    assert training.scheduler.last_epoch == 0
    assert not training.optimiser.state
    training.scaler.update(2.0**8)
    training._step(training.batches[1])
    assert training.scheduler.last_epoch == 1
    assert not any(torch.equal(weight, before[name]) for name, weight in training.network.named_parameters())
    fp32 = training_of(tmp_path, replace(config, precision="fp32"))
    fp32.progress.step = 1
    fp32._step(fp32.batches[1])
    ours, theirs = (one.optimiser.state[one.network.words.weight]["exp_avg"] for one in (training, fp32))
    assert float((ours - theirs).norm()) < 0.02 * float(theirs.norm()), "the gradient, without the scale"


def test_pause_takes_effect_between_evaluations(tmp_path):
    _, straight = session(tmp_path / "whole")
    answers = iter([False, False, True])  # called after each step that is not followed by an evaluation
    first, before = session(tmp_path / "cut", pausing=lambda: next(answers))
    assert (first.stop, first.examples, before) == ("paused", 48, [])
    second, after = session(tmp_path / "cut")
    assert second.stop == "completed"
    assert {e.resumed_from for e in after} == {48}
    assert numbers(after) == numbers(straight)


def test_torn_state_starts_again(tmp_path):
    session(tmp_path, decisions={64: "pause"})
    (tmp_path / STATE).write_bytes(b"torn")
    _, seen = session(tmp_path)
    assert (seen[0].examples, seen[0].resumed_from) == (64, 0)


def test_draft_of_a_killed_save_does_not_fail_the_trial(tmp_path):
    session(tmp_path, decisions={64: "pause"})
    (tmp_path / "last" / ".state.pt.1-ab").write_bytes(b"half")
    assert session(tmp_path)[0].stop == "completed"
    assert not (tmp_path / "last").exists()


def test_best_value_matches_weights_after_crash_between_two_writes(tmp_path):
    """`best/` is written before `last/`: the state lacks the evaluation at 192, and a GPU need not repeat it."""
    values = iter([0.5, 0.6, 0.9, 0.1, 0.7, 0.1])

    def evaluate(embed):
        return next(values), *toy.evaluate(embed)[1:]

    session(tmp_path, decisions={128: "pause"}, evaluate=evaluate)
    state = (tmp_path / STATE).read_bytes()
    session(tmp_path, evaluate=evaluate)
    (tmp_path / "last").mkdir()
    (tmp_path / STATE).write_bytes(state)
    outcome, seen = session(tmp_path, evaluate=evaluate)
    assert [e.value for e in seen] == [0.7, 0.1]
    assert (outcome.best, outcome.best_at) == (0.9, 192)
    assert TrialFiles(str(tmp_path)).load_best()[1]["best"]["value"] == 0.9


@dataclass(frozen=True)
class Second(World):
    """The second of two workers, which gets the first one's state."""

    rank: int = 1
    size: int = 2
    state: Any = None

    def broadcast(self, value):
        del value
        return self.state


def test_resumed_workers_draw_new_dropout_masks(tmp_path):
    session(tmp_path, decisions={128: "pause"})
    state = TrialFiles(str(tmp_path)).load_last() | {"best": None}

    def first_draw(stored):
        config = config_of()
        Training(
            method=toy.METHOD, config=config, network=toy.ToyNetwork(config, 0), examples=toy.examples(),
            evaluate=toy.evaluate, seed=0, files=TrialFiles(str(tmp_path)), world=Second(state=stored),
        )  # fmt: skip
        return float(torch.rand(1))

    assert first_draw(None) == first_draw(None)
    assert first_draw(state) == first_draw(state) != first_draw(None)


@pytest.mark.parametrize("name", [WEIGHTS, SIMILARITIES, TRIAL])
def test_state_without_its_best_weights_starts_again(name, tmp_path):
    """Else the trial could end with the value of weights that do not exist."""
    values = iter([0.9, 0.1, 0.9, *[0.1] * 20])  # the best comes first

    def evaluate(embed):
        return next(values), *toy.evaluate(embed)[1:]

    session(tmp_path, decisions={128: "pause"}, evaluate=evaluate)
    (tmp_path / name).unlink()
    outcome, seen = session(tmp_path, evaluate=evaluate)
    assert seen[0].resumed_from == 0
    assert (outcome.best, outcome.best_at) == (0.9, 64)
    assert (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("kind", "changes", "value"),
    [("nan", {"learning_rate": 1e30, "max_grad_norm": 0}, 0.5), ("collapse", {}, math.nan)],
)
def test_useless_numbers_end_the_training(kind, changes, value, tmp_path):
    with pytest.raises(TrainingFailure, match=r"loss is nan|same vector") as caught:
        session(tmp_path, config_of(**changes), evaluate=lambda _: (value, {}, {}))
    assert caught.value.kind == kind


def test_vectors_of_broken_weights_are_no_collapse(tmp_path, monkeypatch):
    """The loss of the last step before an evaluation is that of the weights before their update."""
    monkeypatch.setattr(toy.ToyNetwork, "after_step", lambda network: network.words.weight.data.fill_(math.nan))

    def evaluate(embed):
        return float(embed(toy.examples().columns["sentence"].take(range(4))).sum()), {}, {}

    with pytest.raises(TrainingFailure, match="vectors are NaN or infinite after 16 training examples") as caught:
        session(tmp_path, config_of(eval_examples=16), evaluate=evaluate)
    assert caught.value.kind == "nan"


@pytest.mark.parametrize(("micro_batch", "size"), [(None, 16), (5, 5), ("auto", 3)])
def test_one_piece_of_a_batch_is_measured(micro_batch, size, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "largest_piece", lambda *_: 3)
    training = training_of(tmp_path, config_of(micro_batch=micro_batch))
    sizes, encode = [], training.network.encode
    training.network.encode = lambda views: sizes.append(max(map(len, views.values()))) or encode(views)
    training.measure(1)
    assert set(sizes) == {size}
    assert training.metrics[f"{STEP_SECONDS}1"] > 0


def test_attention_is_not_left_to_cudnn(tmp_path):
    torch.backends.cuda.enable_cudnn_sdp(True)  # as in a new process
    session(tmp_path)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_no_batch_is_an_error():
    with pytest.raises(ValueError, match="at least 2 training examples"):
        first_batches(iter(()), None)


def test_training_goes_on_while_its_state_is_written(tmp_path):
    """The state is that of the moment of the save: a trial that resumes from it ends as one that never stopped."""
    config = config_of(epochs=8, checkpoint_seconds=1e-9)
    whole, plain = session(tmp_path / "whole", config)
    further, copy = threading.Event(), tmp_path / "copy" / STATE
    copy.parent.mkdir(parents=True)

    class Slow(TrialFiles):
        def save_last(self, state):
            waited.append(further.wait(timeout=20))
            super().save_last(state)
            if not copy.exists():
                shutil.copy(tmp_path / "slow" / STATE, copy)

    def evaluate(embed):
        evaluations.append(1)
        if len(evaluations) > 3:
            further.set()
        return toy.evaluate(embed)

    waited, evaluations = [], []
    outcome, seen = session(tmp_path / "slow", config, evaluate=evaluate, files=Slow)
    assert waited[0], "training waited for the disk"
    assert numbers(seen) == numbers(plain)
    assert not (tmp_path / "slow" / "last").exists()
    resumed, rest = session(tmp_path / "copy", config)
    assert 0 < rest[0].resumed_from < whole.examples
    assert numbers(rest) == numbers(e for e in plain if e.examples > rest[0].resumed_from)
    assert (resumed.best, resumed.examples) == (outcome.best, outcome.examples) == (whole.best, whole.examples)


@pytest.mark.costly
def test_saves_take_a_small_share_of_the_time(tmp_path):
    saves = []

    class Slow(TrialFiles):
        def save_last(self, _state):
            saves.append(time.monotonic())
            time.sleep(0.1)

    def evaluate(embed):
        time.sleep(0.02)
        return toy.evaluate(embed)

    began = time.monotonic()
    session(tmp_path, config_of(epochs=50, eval_examples=32, checkpoint_seconds=1e-3), evaluate=evaluate, files=Slow)
    assert 1 <= len(saves) <= 1 + (time.monotonic() - began) / (20 * 0.1)


def test_state_that_cannot_be_written_fails_the_trial(tmp_path):
    class Full(TrialFiles):
        def save_last(self, _state):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        session(tmp_path, config_of(checkpoint_seconds=1e-9), files=Full)


# ------------------------------------------------------------ snapshots
def trained(device):
    """A network with batch-norm and its optimiser, and what makes a step of them."""
    network = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.1)
    x = torch.randn(32, 64, device=device)

    def step():
        (network(x) ** 3).mean().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    step()
    return (lambda: {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "losses": [x.sum()]}), step


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [tensor for part in parts for tensor in tensors(part)]


def assert_snapshot_is_consistent(device, steps):
    state, step = trained(device)
    before = [tensor.clone() for tensor in tensors(state())]
    taken = Snapshot(state(), torch.device(device))
    for _ in range(steps):
        step()
    read = taken.read()
    assert read.keys() == state().keys()
    assert read["optimiser"]["param_groups"] == state()["optimiser"]["param_groups"]
    assert len(tensors(read)) == len(before)
    changed = 0
    for copy, then, now in zip(tensors(read), before, tensors(state()), strict=True):
        assert torch.equal(copy, then.cpu())
        changed += not torch.equal(then, now)
    assert changed >= len(before) - 1  # all but the loss
    return read


def test_snapshot_is_consistent_on_a_cpu():
    assert_snapshot_is_consistent("cpu", 3)


class FullGpu(TorchFunctionMode):
    """A device without room for a second copy of anything but the first tensor."""

    left = 1

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ == "clone":
            self.left -= 1
            if self.left < 0:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return func(*args, **(kwargs or {}))


def test_snapshot_is_consistent_without_gpu_room_for_a_copy():
    state, step = trained("cpu")
    before = [tensor.clone() for tensor in tensors(state())]
    with FullGpu():
        taken = Snapshot(state(), torch.device("cuda"))
    step()
    assert all(map(torch.equal, tensors(taken.read()), before))


def test_a_state_is_written_without_a_copy_of_its_bytes(tmp_path):
    files, state = TrialFiles(str(tmp_path)), {"network": {"w": torch.arange(2**23, dtype=torch.float32)}}
    tracemalloc.start()
    files.save_last(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22  # of 32 MiB
    assert torch.equal(files.load_last()["network"]["w"], state["network"]["w"])
    assert [path.name for path in (tmp_path / "last").iterdir()] == ["state.pt"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_snapshot_is_consistent_on_a_gpu():
    """Steps follow at once and nothing waits; twice, so that page-locked buffers are reused."""
    for _ in range(2):
        read = assert_snapshot_is_consistent("cuda", 50)
        assert all(tensor.is_pinned() for tensor in tensors(read["network"]))
