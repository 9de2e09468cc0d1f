"""Word-vector augmentation and word importance: against loops, and in distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Generator
from torch.testing import assert_close

from trainables.methods.gclsr.pwva import OPERATIONS, augment, random_zero_spans, word_importance

PROBABILITIES = {"gwn": 0.5, "ifft": 0.1, "rbn": 0.2, "rzs": 0.2}
DIM = 300


def only(name: str) -> dict[str, float]:
    return {operation: float(operation == name) for operation in OPERATIONS}


def words(n: int) -> torch.Tensor:
    return torch.randn(n, DIM, generator=Generator().manual_seed(5)) + 0.2


def augmented(n: int, p: float, probabilities: dict[str, float], formulas: str = "code", seed: int = 0) -> torch.Tensor:
    return augment(words(n), p, probabilities, formulas, Generator().manual_seed(seed))


def test_words_change_with_probability_p_and_draws_follow_the_generator() -> None:
    w, n = words(4000), 4000
    changed = (augmented(n, 0.3, PROBABILITIES) != w).any(1)
    assert abs(int(changed.sum()) - 1200) < 150  # five standard deviations
    assert not (augmented(n, 0.0, PROBABILITIES) != w).any()
    assert (augmented(n, 1.0, PROBABILITIES) != w).any(1).all()
    assert torch.equal(augmented(n, 0.3, PROBABILITIES), augmented(n, 0.3, PROBABILITIES))
    assert not torch.equal(augmented(n, 0.3, PROBABILITIES, seed=1), augmented(n, 0.3, PROBABILITIES))
    assert torch.equal(w, words(4000))


def test_operations_come_with_their_probabilities() -> None:
    w = words(5000)
    out = augmented(5000, 1.0, PROBABILITIES)
    noise = ((out - w).square().mean(1) / w.square().mean(1)).sqrt()
    zeroed = (out == 0).sum(1) > 5
    centred = (out.mean(1).abs() < 1e-6) & ~zeroed
    loud = (noise > 0.2) & ~zeroed & ~centred
    counts = [int(kind.sum()) for kind in (loud, centred, zeroed)]
    for count, share in zip(counts, (0.5, 0.1, 0.2), strict=True):
        assert abs(count - 5000 * share) < 5 * math.sqrt(5000 * share * (1 - share))


def test_gaussian_noise_has_a_ratio_of_6_to_11_decibels() -> None:
    w = words(2000)
    snr = -10 * ((augmented(2000, 1.0, only("gwn")) - w).square().mean(1) / w.square().mean(1)).log10()
    assert float(snr.min()) > 4.3  # 300 components give the ratio with a standard deviation of 0.35
    assert float(snr.max()) < 12.7
    assert float(snr.mean()) == pytest.approx(8.5, abs=0.25)


def test_zero_setting_draws_its_spans_as_the_public_code() -> None:
    zeros = augmented(3000, 1.0, only("rzs")) == 0
    counts = zeros.sum(1).float()
    assert not zeros[:, -1].any()  # starts end at 299 - length
    assert zeros[:, 0].any()
    # 17 spans on average, of 1 or (half of the words, 1 draw in 11) 2 components, a few of them overlapping
    expected = 17 * (1 + 0.5 * 0.1 / 1.1)
    expected -= expected**2 / (2 * DIM)
    assert float(counts.mean()) == pytest.approx(expected, abs=0.15)
    assert counts.max() <= 38


def test_background_noise_is_small() -> None:
    w = words(500)
    change = augmented(500, 1.0, only("rbn")) - w
    assert float(change.abs().max()) <= 0.01 * float(w.abs().max())
    assert (change != 0).any(1).all()


def test_the_papers_formulas() -> None:
    w = words(2000)
    assert float((augmented(2000, 1.0, only("gwn"), "paper") - w).std()) == pytest.approx(0.1, rel=0.01)
    assert torch.equal(augmented(2000, 1.0, only("ifft"), "paper"), w)
    shift = augmented(2000, 1.0, only("rbn"), "paper") - w
    assert float(shift.min()) > -1e-6
    assert float(shift.max()) < 0.1 + 1e-6
    assert float(shift.mean()) == pytest.approx(0.05, rel=0.01)
    dropped = augmented(2000, 1.0, only("rzs"), "paper")
    assert float((dropped == 0).float().mean()) == pytest.approx(0.1, rel=0.02)
    assert_close(dropped[dropped != 0], (w / 0.9)[dropped != 0])


def test_spans_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    w = words(6)
    starts, lengths = rng.integers(0, DIM - 2, (6, 4)), rng.integers(1, 3, (6, 4))
    expected = w.clone()
    for row in range(6):
        for start, length in zip(starts[row], lengths[row], strict=True):
            expected[row, start : start + length] = 0
    assert torch.equal(random_zero_spans(w, torch.from_numpy(starts), torch.from_numpy(lengths)), expected)


def test_importance_against_the_score_matrix() -> None:
    lengths, longest = torch.tensor([3, 5, 1]), 6
    sentence = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2])
    w = words(9).double()
    got = word_importance(w, sentence, lengths, longest).squeeze(1)
    for number, n in enumerate(lengths.tolist()):
        x = torch.zeros(longest, DIM, dtype=torch.float64)
        x[:n] = w[sentence == number]
        scores = x @ x.T / math.sqrt(DIM)
        mask = torch.arange(longest) < n
        scores[~(mask[:, None] & mask[None, :])] = 1e-9
        assert_close(got[sentence == number], scores.sum(1)[:n])
