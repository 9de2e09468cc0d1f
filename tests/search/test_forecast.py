"""The forecast: its arithmetic, and one real measurement on the builtin encoder."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from search.cli.main import main
from search.running.forecast import extremes, forecast_lines, pruned_share, trials
from search.space import load_space


def space(tmp_path, **changes):
    text = {
        "name": "f",
        "method": "simcse",
        "encoder": "builtin:tiny",
        "data": "{train: builtin, dev: [builtin]}",
        "metric": "{name: builtin_dev}",
        "params": "{learning_rate: {float: [1e-5, 1e-3], log: true}, batch_size: {choice: [64, 8, 16]}}",
        "search": "{trials: 10, repeats: 2}",
        "pruner": "{kind: none}",
        "train": "{max_examples: 1600, eval_examples: 100}",
    } | changes
    path = tmp_path / "f.yaml"
    path.write_text("\n".join(f"{k}: {v}" for k, v in text.items()))
    return load_space(path)


def test_extremes_are_the_ends_of_every_number(tmp_path):
    small, large = extremes(space(tmp_path))
    assert small == {"learning_rate": 1e-5, "batch_size": 8}
    assert large == {"learning_rate": 1e-3, "batch_size": 64}


def test_trials_count_repeats_and_grids(tmp_path):
    assert trials(space(tmp_path)) == 20
    grid = space(tmp_path, params="{batch_size: {grid: [8, 16, 32]}}", search="{sampler: grid}")
    assert trials(grid) == 3
    few = "{batch_size: {choice: [8, 16]}, dropout: {choice: [0.0, 0.1]}}"
    assert trials(space(tmp_path, params=few, search="{trials: 120, repeats: 3}")) == 12
    assert trials(space(tmp_path, search="{time: 1h}")) is None


def test_expected_share_of_successive_halving(tmp_path):
    # rungs at 100, 300, 900 of 2,700 examples: 100 + 200/3 + 600/9 + 1800/27 = 300
    halving = space(tmp_path, pruner="{kind: successive_halving, reduction: 3, min_rung: 100}")
    assert pruned_share(halving, 2700) == pytest.approx(300 / 2700)
    assert pruned_share(halving, 100) == 1.0
    # by default nothing is judged in the first fifteenth: rungs at 200, 600, 1800
    later = space(tmp_path, pruner="{kind: successive_halving, reduction: 3}")
    assert pruned_share(later, 2700) == pytest.approx((200 + 400 / 3 + 1200 / 9 + 900 / 27) / 2700)
    pausing = space(tmp_path, pruner="{kind: asha, reduction: 3, min_rung: 100}")  # rungs at 100, 300, 600 of 1,200
    assert pruned_share(pausing, 1200) == pytest.approx((100 + 200 / 3 + 300 / 9 + 600 / 27) / 1200)
    hyperband = space(tmp_path, pruner="{kind: hyperband, reduction: 3}")
    assert 300 / 2700 < pruned_share(hyperband, 2700) < 1
    assert pruned_share(space(tmp_path), 2700) == 1.0


def test_steps_between_evaluations_are_counted_in_examples(tmp_path):
    asha, params = "{kind: asha}", "{batch_size: 25, learning_rate: {float: [1e-5, 1e-3]}}"
    steps = space(tmp_path, pruner=asha, train="{max_examples: 1600, eval_steps: 4}", params=params)
    same = space(tmp_path, pruner=asha, train="{max_examples: 1600, eval_examples: 100}", params=params)
    assert pruned_share(steps, 1600) == pruned_share(same, 1600) < 0.6


@pytest.mark.costly
def test_forecast_uses_the_length_that_a_trial_reports(tmp_path):
    """A curriculum of two and a half passes was counted as four."""
    train = "{epochs: 4, eval_examples: 100000}"
    paced = space(tmp_path, method="selfccl", params="{batch_size: 50, learning_rate: {grid: [1e-5]}}", train=train,
                  preset="none", search="{sampler: grid}")  # fmt: skip
    assert "15,000 examples" in forecast_lines(paced, None)[0]


@pytest.mark.costly
def test_measures_and_adds_up(tmp_path):
    lines = forecast_lines(space(tmp_path), price=2.0)
    assert "1,600 examples" in lines[0]
    assert "20 trials" in lines[2]
    assert ("device-hours" if torch.cuda.is_available() else "hours on the CPU") in lines[2]
    assert "MiB" in lines[3]
    assert lines[4].endswith("at 2 per device-hour")


def test_forecast_announces_its_measurement(tmp_path, monkeypatch):
    def measured(*_):
        yield f"printed before: {printed[-1].strip()}"

    printed = []
    monkeypatch.setattr("search.running.forecast.forecast_lines", measured)
    monkeypatch.setattr("search.cli.main.say", lambda lines, **_: printed.extend(lines))
    done = CliRunner().invoke(main, ["check", space(tmp_path).source, "--forecast"])
    assert done.exit_code == 0, done.output
    assert printed[-1] == "  printed before: forecast: running a few steps to measure the cost"


def test_a_configuration_that_cannot_run_is_reported(tmp_path, monkeypatch):
    from trainables.contract.trial import Outcome
    from trainables.training import trial

    monkeypatch.setattr(trial, "run_trial", lambda *_: Outcome("failed:oom", None, 0, 0, 0.0, "no memory left"))
    assert (
        "WARNING: the configuration of the highest values does not fit into memory: no memory left"
        in forecast_lines(space(tmp_path), None)
    )
