"""`analysis test --untrained` after the test: what training has improved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from small_store import SmallStore, fill
from trained_trials import trial_folder

from analysis.commands.main import main
from analysis.reading.store import find_study, open_store
from analysis.tables.study import read_study

pytestmark = pytest.mark.costly


def test_untrained_scores_are_compared_with_the_trained_ones(tmp_path: Path) -> None:
    made = SmallStore(tmp_path)
    fill(made, trials=6)
    for seed in (0, 2):
        trial_folder(made.folder / "small-1" / "trials" / f"c0000.{seed}", "edacse", "zh", seed=seed)
    words = ["test", "small-1", "--storage", str(made.folder), "--set", "builtin", "--reason"]
    alone = CliRunner().invoke(main, [*words, "before", "--untrained"])
    assert alone.exit_code == 0, alone.output
    assert "difference" not in alone.output
    first = CliRunner().invoke(main, [*words, "the result"], catch_exceptions=False)
    assert "Not the first opening" not in first.stderr
    after = CliRunner().invoke(main, [*words, "before", "--untrained", "--format", "json"])
    assert "Not the first opening" not in after.stderr
    (gain,) = json.loads(after.stdout)["training_gains"]
    opened = open_store(made.uri)
    runs = [
        r
        for r in read_study(opened, find_study(opened, "small-1")).stored_trials
        if r.tags["trial_id"] in ("c0000.0", "c0000.2")
    ]
    values = [r.metrics["builtin_test"] for r in runs]
    before = next(r.metrics["untrained_builtin_test"] for r in runs if "untrained_builtin_test" in r.metrics)
    assert gain["trained"] == pytest.approx(np.mean(values), abs=1e-6)
    assert gain["untrained"] == pytest.approx(before)
    assert gain["low"] < np.mean(values) - before < gain["high"]
    for path in made.folder.rglob("test_similarities.npz"):
        path.unlink()
    plain = CliRunner().invoke(main, [*words, "before", "--untrained"]).output
    (row,) = [line.split() for line in plain.splitlines() if line.startswith("builtin_test ")]
    assert len(row) == 4  # without an interval
    assert float(row[3]) == pytest.approx(100 * (np.mean(values) - before), abs=0.011)
    assert "to the encoder before training." in plain
