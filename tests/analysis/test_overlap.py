"""Test pairs that also stand in a study's training or dev sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.checkpoints.overlap import overlaps, seen_sets
from trainables.data.sets import Pairs, load_pairs


def pair_set(name: str, *rows: tuple[str, str]) -> Pairs:
    first, second = ([row[i] for row in rows] for i in (0, 1))
    return Pairs(name, first, second, np.arange(len(rows), dtype=float), None, "here")


def test_order_case_and_blanks_do_not_hide_a_pair() -> None:
    test = pair_set("t", ("A dog.", "A cat."), ("a  CAT.", "a dog."), ("A dog.", "A cow."), ("A dog.", "A cat."))
    dev = pair_set("d", ("A dog.", "A cat."), ("A pig.", "A hen."))
    (line,) = overlaps([test], [("dev", dev)])
    assert line.startswith("t test: 3 of 4 pairs (75.0 %) also stand in d dev, which selected")


def test_sets_without_overlap_are_not_mentioned() -> None:
    test, dev = pair_set("t", ("A dog.", "A cat.")), pair_set("d", ("A dog.", "A pig."))
    assert overlaps([test], [("dev", dev), ("train", dev)]) == []


@pytest.mark.real_data
def test_published_counts_of_stsb_in_sts12_to_16(real_data: Path) -> None:  # noqa: ARG001  # skips without data
    tests = [load_pairs(f"sts{year}", "test", "en") for year in range(12, 17)]
    seen, _ = seen_sets({"train": "stsb+wiki", "dev": ["stsb", "sickr"], "language": "en"}, "stsb_dev")
    assert [(part, p.name, len(p)) for part, p in seen] == [("dev", "stsb", 1500), ("train", "stsb", 5749)]
    counts = [int(line.split()[2].replace(",", "")) for line in overlaps(tests, seen)]
    assert counts == [259, 1002, 81, 597, 193, 1861, 580, 1102, 22, 197]
