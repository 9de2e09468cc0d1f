"""Overlap between what selected and what tests: by hand, and the published counts of STS-B in STS12-16."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from analysis.checkpoints.overlap import Overlap, overlaps
from trainables.data.sets import Pairs, load_pairs

DATA = Path(os.environ.get("SEARCH_DATA_DIR") or Path(__file__).parents[2].parent / "shared" / "data")


def pairs(name: str, *rows: tuple[str, str]) -> Pairs:
    first, second = ([row[i] for row in rows] for i in (0, 1))
    return Pairs(name, first, second, np.arange(len(rows), dtype=float), None, "here")


def test_order_case_and_blanks_do_not_hide_a_pair() -> None:
    test = pairs("t", ("A dog.", "A cat."), ("a  CAT.", "a dog."), ("A dog.", "A cow."), ("A dog.", "A cat."))
    dev = pairs("d", ("A dog.", "A cat."), ("A pig.", "A hen."))
    assert overlaps([test], [("dev", dev)]) == [Overlap("t", 4, "d", "dev", 3)]


def test_sets_without_overlap_are_not_mentioned() -> None:
    test, dev = pairs("t", ("A dog.", "A cat.")), pairs("d", ("A dog.", "A pig."))
    assert overlaps([test], [("dev", dev), ("train", dev)]) == []


def test_the_warning_names_counts_and_reason() -> None:
    text = str(Overlap("sts12", 3108, "stsb", "dev", 259))
    assert text.startswith("sts12 test: 259 of 3,108 pairs (8.3 %) also stand in stsb dev, which selected")
    assert "which trained" in str(Overlap("sts12", 3108, "stsb", "train", 1002))


@pytest.mark.real_data
def test_published_counts_of_stsb_in_sts12_to_16(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (DATA / "en_sts12.tsv").is_file():
        pytest.skip("needs SEARCH_DATA_DIR with STS-B and STS12-16")
    monkeypatch.setenv("SEARCH_DATA_DIR", str(DATA))
    tests = [load_pairs(f"sts{year}", "test", "en") for year in range(12, 17)]
    seen = [(part, load_pairs("stsb", part, "en")) for part in ("train", "dev")]  # type: ignore[arg-type]
    counts = [o.count for o in overlaps(tests, seen)]
    assert counts == [1002, 259, 597, 81, 1861, 193, 1102, 580, 197, 22]
