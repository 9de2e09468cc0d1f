"""The training loop on a toy method: cadence, verdicts, the best-checkpoint rule, resuming, faults."""

from __future__ import annotations

import errno
import math
import shutil
import threading
import time

import pytest
import torch
import toy

from trainables.contract.trial import SIMILARITIES, TRIAL, WEIGHTS
from trainables.methods.simcse.config import SimcseConfig
from trainables.training.broken import Broken
from trainables.training.checkpoint import TrialFiles
from trainables.training.loop import cut, train
from trainables.training.setup import TrainingSetup


def life(folder, config=None, verdicts=None, evaluate=toy.evaluate, seed=0, pausing=lambda: False, files=TrialFiles):
    """One life of a toy trial: (outcome, evaluations). `verdicts` maps the rung to something other than go."""
    config = config or SimcseConfig(batch_size=16, learning_rate=1e-2, epochs=4, eval_examples=64)
    seen = []

    def report(evaluation):
        seen.append(evaluation)
        return (verdicts or {}).get(evaluation.rung, "go")

    setup = TrainingSetup(
        method=toy.METHOD,
        config=config,
        network=toy.ToyNetwork(config, seed),
        examples=toy.examples(),
        evaluate=evaluate,
        seed=seed,
        files=files(str(folder)),
    )
    return train(setup, report, pausing=pausing), seen


def test_evaluates_every_eval_examples_and_at_the_end(tmp_path):
    config = SimcseConfig(batch_size=16, epochs=2, eval_examples=48)
    outcome, seen = life(tmp_path, config)
    assert [(e.rung, e.examples) for e in seen] == [(48, 48), (96, 96), (144, 128)]
    assert outcome.stop == "completed"
    assert outcome.examples == 128
    assert seen[0].metrics["f"] == 1.0  # the facts come once
    assert "f" not in seen[1].metrics


def test_rungs_are_equal_for_batch_sizes_that_do_not_divide_them(tmp_path):
    _, seen = life(tmp_path, SimcseConfig(batch_size=24, epochs=2, eval_examples=32))
    assert [e.rung for e in seen] == [32, 64, 96, 128]
    assert all(e.examples >= e.rung for e in seen[:-1])


def test_eval_steps_wins(tmp_path):
    _, seen = life(tmp_path, SimcseConfig(batch_size=16, epochs=2, eval_examples=10, eval_steps=4))
    assert [e.examples for e in seen] == [64, 128]


def test_eval_steps_are_steps(tmp_path):
    """64 examples in batches of 24 are 24, 24, 16: an epoch's last batch delays no evaluation, nor does a pause."""
    config = SimcseConfig(batch_size=24, epochs=4, eval_steps=3, learning_rate=1e-2)
    _, straight = life(tmp_path / "whole", config)
    assert [(e.rung, e.examples) for e in straight] == [(72, 64), (144, 128), (216, 192), (288, 256)]
    first, before = life(tmp_path / "cut", config, verdicts={144: "pause"})
    _, after = life(tmp_path / "cut", config)
    assert first.stop == "paused"
    assert [(e.rung, e.value) for e in before + after] == [(e.rung, e.value) for e in straight]


def test_max_examples_ends_the_run(tmp_path):
    outcome, _ = life(tmp_path, SimcseConfig(batch_size=16, epochs=9, max_examples=40, eval_examples=1000))
    assert outcome.examples == 48  # the batch that reaches 40 is the last


def test_the_best_evaluation_is_kept(tmp_path):
    outcome, seen = life(tmp_path, SimcseConfig(batch_size=16, learning_rate=0.5, epochs=6, eval_examples=16))
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
    outcome, seen = life(tmp_path, verdicts={128: "prune"})
    assert outcome.stop == "pruned"
    assert seen[-1].rung == outcome.examples == 128


def test_a_paused_trial_goes_on_as_if_nothing_had_happened(tmp_path):
    whole, straight = life(tmp_path / "whole")
    first, before = life(tmp_path / "cut", verdicts={128: "pause"})
    assert first.stop == "paused"
    second, after = life(tmp_path / "cut")
    assert [e.value for e in before + after] == [e.value for e in straight]
    assert [e.metrics["loss"] for e in before + after] == [e.metrics["loss"] for e in straight]
    assert (second.best, second.best_at, second.stop) == (whole.best, whole.best_at, "completed")
    assert {e.resumed_from for e in after} == {128}
    a, b = (TrialFiles(str(tmp_path / name)).load_best()[0] for name in ("whole", "cut"))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_a_pause_takes_effect_between_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr("trainables.training.loop.PAUSE_LOOK_S", 0.0)
    monkeypatch.setattr("trainables.training.loop.PAUSE_LOOK_SHARE", 1e9)
    _, straight = life(tmp_path / "whole")
    answers = iter([False, False, True])  # asked after each step that is not followed by an evaluation
    first, before = life(tmp_path / "cut", pausing=lambda: next(answers))
    assert (first.stop, first.examples, before) == ("paused", 48, [])
    second, after = life(tmp_path / "cut")
    assert second.stop == "completed"
    assert {e.resumed_from for e in after} == {48}
    assert [(e.value, e.metrics["loss"]) for e in after] == [(e.value, e.metrics["loss"]) for e in straight]


def test_same_seed_same_result_and_other_seed_other_result(tmp_path):
    runs = [life(tmp_path / str(i), seed=seed)[1] for i, seed in enumerate((3, 3, 4))]
    values = [[(e.value, e.metrics["loss"]) for e in run] for run in runs]
    assert values[0] == values[1]
    assert values[0] != values[2]


def test_a_torn_state_starts_anew(tmp_path):
    life(tmp_path, verdicts={64: "pause"})
    (tmp_path / "last" / "state.pt").write_bytes(b"torn")
    _, seen = life(tmp_path)
    assert seen[0].examples == 64
    assert seen[0].resumed_from == 0


@pytest.mark.parametrize("name", [WEIGHTS, SIMILARITIES, TRIAL])
def test_a_state_without_the_best_weights_it_tells_of_starts_anew(name, tmp_path):
    """Else the trial could end with the value of weights that nobody has."""
    values = iter([0.9, 0.1, 0.9, *[0.1] * 20])  # the best comes first

    def evaluate(embed):
        _, metrics, similarities = toy.evaluate(embed)
        return next(values), metrics, similarities

    life(tmp_path, verdicts={128: "pause"}, evaluate=evaluate)
    (tmp_path / name).unlink()
    outcome, seen = life(tmp_path, evaluate=evaluate)
    assert seen[0].resumed_from == 0
    assert (outcome.best, outcome.best_at) == (0.9, 64)
    assert (tmp_path / name).exists()


def test_nan_loss_is_broken(tmp_path):
    with pytest.raises(Broken, match="loss is nan") as caught:
        life(tmp_path, SimcseConfig(batch_size=16, learning_rate=1e30, epochs=8, max_grad_norm=0))
    assert caught.value.kind == "nan"


def test_collapsed_vectors_are_broken(tmp_path):
    def constant(_embed):
        return math.nan, {}, {}

    with pytest.raises(Broken) as caught:
        life(tmp_path, evaluate=constant)
    assert caught.value.kind == "collapse"


def test_attention_is_not_left_to_cudnn(tmp_path):
    torch.backends.cuda.enable_cudnn_sdp(True)  # as in a new process
    life(tmp_path)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_no_batch_is_an_error():
    with pytest.raises(ValueError, match="at least 2 training examples"):
        cut(iter(()), None)


def test_training_goes_on_while_its_state_is_written(tmp_path):
    """The state is that of the moment of the save: a trial that goes on from it ends as one that never stopped."""
    config = SimcseConfig(batch_size=16, learning_rate=1e-2, epochs=8, eval_examples=64, checkpoint_seconds=1e-9)
    whole, plain = life(tmp_path / "whole", config)
    further, kept = threading.Event(), tmp_path / "kept" / "last"
    kept.mkdir(parents=True)

    class Slow(TrialFiles):
        def save_last(self, state):
            waited.append(further.wait(timeout=20))
            super().save_last(state)
            if not (kept / "state.pt").exists():
                shutil.copy(tmp_path / "slow" / "last" / "state.pt", kept)

    def evaluate(embed):
        evaluations.append(1)
        if len(evaluations) > 3:
            further.set()
        return toy.evaluate(embed)

    waited, evaluations = [], []
    outcome, seen = life(tmp_path / "slow", config, evaluate=evaluate, files=Slow)
    assert waited[0], "training waited for the disk"
    assert [e.value for e in seen] == [e.value for e in plain]
    assert not (tmp_path / "slow" / "last").exists()
    resumed, rest = life(tmp_path / "kept", config)
    assert 0 < rest[0].resumed_from < whole.examples
    assert [e.value for e in rest] == [e.value for e in plain if e.examples > rest[0].resumed_from]
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

    config = SimcseConfig(batch_size=16, epochs=50, eval_examples=32, checkpoint_seconds=1e-3)
    began = time.monotonic()
    life(tmp_path, config, evaluate=evaluate, files=Slow)
    assert 1 <= len(saves) <= 1 + (time.monotonic() - began) / (20 * 0.1)


def test_a_state_that_could_not_be_written_fails_the_trial(tmp_path):
    class Full(TrialFiles):
        def save_last(self, _state):
            raise OSError(errno.ENOSPC, "No space left on device")

    config = SimcseConfig(batch_size=16, epochs=4, eval_examples=64, checkpoint_seconds=1e-9)
    with pytest.raises(OSError, match="No space left"):
        life(tmp_path, config, files=Full)
