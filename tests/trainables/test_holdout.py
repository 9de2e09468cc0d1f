"""Dev pairs held out: which they are, that trials report them, and that they change what selects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainables.contract.trial import TrialSpec
from trainables.data.sets import Pairs, held_out
from trainables.training.method_trial import inputs_key, load_inputs


def pairs(n: int) -> Pairs:
    return Pairs("stsb", [f"a {i}" for i in range(n)], [f"b {i}" for i in range(n)], np.arange(float(n)), None, "r1")


def test_two_parts_make_the_whole_set() -> None:
    whole = pairs(1000)
    selecting, held = held_out([whole], 0.3)
    assert (selecting.name, held.name) == ("stsb", "stsb_held")
    assert sorted(selecting.first + held.first) == sorted(whole.first)
    assert len(held) == pytest.approx(300, abs=45)  # three standard deviations
    for part in (selecting, held):
        assert [f"a {int(g)}" for g in part.gold] == part.first  # scores stay with their sentences
        assert [f"b {int(g)}" for g in part.gold] == part.second
    assert selecting.revision == f"r1, {len(selecting)} of 1000 pairs"
    assert held_out([whole], 0.0) == (whole,)


def test_a_pair_stays_on_its_side_in_any_order() -> None:
    whole = pairs(200)
    turned = replace(whole, first=whole.first[::-1], second=whole.second[::-1], gold=whole.gold[::-1])
    assert sorted(held_out([turned], 0.5)[1].first) == sorted(held_out([whole], 0.5)[1].first)
    assert set(held_out([whole], 0.2)[1].first) < set(held_out([whole], 0.5)[1].first)


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"metric\.holdout: stsb has too few pairs \(3\) for two parts"):
        held_out([pairs(3)], 0.5)


def test_a_trial_evaluates_both_parts(tmp_path: Path) -> None:
    import torch

    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    spec = TrialSpec(method="simcse", encoder="builtin:tiny", data=data, metric="builtin_dev", folder=str(tmp_path))
    halved = replace(spec, holdout=0.5)
    assert inputs_key(spec) != inputs_key(halved)
    found = load_inputs(halved, torch.device("cpu"))
    assert [s.name for s in found.sets.sets] == ["builtin", "builtin_held"]
    assert set(found.revisions) >= {"builtin_dev", "builtin_held_dev"}
