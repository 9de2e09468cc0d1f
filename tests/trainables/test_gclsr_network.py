"""GCLSR's network, augmentation of word vectors and attention."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from launches import HostWaits
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from trainables.encoders.word_vectors import WordVectors, unknown_id, unknown_vectors
from trainables.methods.gclsr.config import GclsrConfig
from trainables.methods.gclsr.method import loss
from trainables.methods.gclsr.network import (
    MASKED_SCORE,
    OPERATIONS,
    GclsrNetwork,
    Layout,
    TextCNN,
    augment,
    softmax_attention,
)

DIM, LONGEST = 7, 12
NETWORK = GclsrConfig(filters=5, region_sizes=(1, 3, 12), max_words=LONGEST, batch_size=4)
VECTORS = WordVectors(tuple("abcdefghij"), np.random.default_rng(0).standard_normal((10, DIM)).astype(np.float32))


def sentences(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 10, n).astype(np.int32) for n in lengths]


def padded(rows: list[np.ndarray], padding: Tensor) -> Tensor:
    """(B, LONGEST, DIM) word vectors of known words, padding vectors behind them."""
    x = padding.repeat(len(rows), LONGEST, 1)
    for i, row in enumerate(rows):
        x[i, : len(row)] = torch.from_numpy(VECTORS.matrix)[row[:LONGEST].astype(np.int64)]
    return x


def dense(convs: torch.nn.ModuleList, x: Tensor) -> Tensor:
    """The public code's way: a convolution over all positions, ReLU, maximum."""
    return torch.cat([F.relu(conv(x.unsqueeze(1))).squeeze(3).amax(2) for conv in convs], dim=1)


@pytest.mark.parametrize("lengths", [[3, 1, 12, 7], [1, 1], [12, 11, 10], [2, 3]])
def test_the_sparse_convolution_and_its_gradients_equal_the_dense_one(lengths: list[int]) -> None:
    torch.manual_seed(0)
    network = TextCNN(DIM, (1, 3, 5, 12), 6).double()
    padding = torch.randn(DIM, dtype=torch.float64)
    x = torch.randn(len(lengths), LONGEST, DIM, dtype=torch.float64)
    for i, n in enumerate(lengths):
        x[i, n:] = padding
    layout = Layout.of(np.array(lengths), LONGEST)
    weights = torch.randn(len(lengths), 24, dtype=torch.float64)

    expected = dense(network.convs, x)
    (expected * weights).sum().backward()
    gradients = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    got = network(x[layout.sentence, layout.position], padding, layout)
    (got * weights).sum().backward()
    assert_close(got, expected)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        assert_close(parameter.grad, gradient)


def test_a_layout_orders_words_by_position() -> None:
    layout = Layout.of(np.array([2, 3, 1]), LONGEST)
    assert layout.position.tolist() == [0, 0, 0, 1, 1, 2]
    assert layout.sentence.tolist() == [0, 1, 2, 0, 1, 1]
    assert layout.first == (0, 3, 5, 6)
    rows = [np.array(r, np.int32) for r in ([1, 2], [3, 4, 5], [6])]
    assert layout.arrange(rows).tolist() == [1, 3, 6, 2, 4, 5]


def test_evaluation_keeps_padding_vectors_and_leaves_out_attention() -> None:
    network = GclsrNetwork(NETWORK, VECTORS, seed=3).eval()
    rows = sentences([5, 1, 12, 20] * 80)  # more than one chunk; 20 words are cut to 12
    got = network.embed(rows)
    assert_close(got, dense(network.backbone.convs, padded(rows, network.padding)).detach())
    assert not got.requires_grad
    assert_close(network.embed(rows[::-1]), got.flip(0))


def test_attention_at_evaluation_equals_the_score_matrix() -> None:
    config = GclsrConfig(filters=5, region_sizes=(1, 3), max_words=LONGEST, attention_at_eval=True)
    network = GclsrNetwork(config, VECTORS, seed=3)
    rows = sentences([5, 1, 12])
    x = padded(rows, network.padding)
    mask = torch.arange(LONGEST) < torch.tensor([len(r) for r in rows])[:, None]
    scores = torch.where(mask[:, :, None] & mask[:, None, :], x @ x.transpose(1, 2) / DIM**0.5, MASKED_SCORE)
    assert_close(network.embed(rows), dense(network.backbone.convs, scores.sum(2, keepdim=True) * x).detach())


def test_training_views_are_two_draws() -> None:
    network = GclsrNetwork(NETWORK, VECTORS, seed=3).train()
    views = {"sentence": sentences([4, 6, 2])}
    torch.manual_seed(1)
    pooled = network.encode(views)
    assert list(pooled) == ["first", "second"]
    assert pooled["first"].shape == (3, 15)
    assert not torch.equal(pooled["first"], pooled["second"])
    torch.manual_seed(1)
    assert torch.equal(network.encode(views)["second"], pooled["second"])
    plain = GclsrNetwork(GclsrConfig(**{**vars(NETWORK), "augmentation": "none"}), VECTORS, seed=3)
    pooled = plain.encode(views)
    assert torch.equal(pooled["first"], pooled["second"])
    z = network.project(pooled)
    assert {name: tuple(v.shape) for name, v in z.items()} == dict.fromkeys(("z1", "z2", "q1", "q2"), (3, 4096))
    assert torch.equal(z["q1"], z["q2"])  # equal views, batch statistics of each view alone


def test_unknown_words_keep_their_vector_unless_resampled_in_training() -> None:
    rows = [np.array([unknown_id("x"), 0, unknown_id("y")], np.int32), np.array([unknown_id("x")], np.int32)]
    options = {**vars(NETWORK), "region_sizes": (1,), "augmentation": "none", "self_attention": False}
    fixed = GclsrNetwork(GclsrConfig(**options), VECTORS, seed=3)
    vectors = torch.from_numpy(unknown_vectors(np.array([unknown_id("x")]), 3, DIM))
    expected = dense(fixed.backbone.convs, torch.cat([vectors, fixed.padding[None].repeat(11, 1)])[None])
    assert_close(fixed.encode({"sentence": rows})["first"][1:], expected)
    resampled = GclsrNetwork(GclsrConfig(**{**options, "oov": "resample"}), VECTORS, seed=3)
    pooled = resampled.encode({"sentence": rows})
    assert not torch.equal(pooled["first"], pooled["second"])
    assert_close(resampled.embed(rows), fixed.embed(rows))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"oov": "resample", "augmentation": "full"},
        {"pwva": "paper", "attention_form": "bert"},
        {"self_attention": False},
    ],
)
def test_a_step_waits_for_nothing(options: dict[str, object]) -> None:
    """On a GPU: neither for its draws nor for shapes."""
    config = GclsrConfig(**{**vars(NETWORK), **options})
    network = GclsrNetwork(config, VECTORS, seed=3).train()
    views = {"sentence": [np.append(row, unknown_id("x")) for row in sentences([4, 6, 2, 9])]}
    with HostWaits() as seen:
        loss(network.project(network.encode(views)), config).backward()
    assert not seen.counts


def test_a_checkpoint_holds_what_another_vocabulary_and_seed_would_change() -> None:
    trained = GclsrNetwork(NETWORK, VECTORS, seed=3)
    state = trained.state_dict()
    assert "vectors" not in state
    more = WordVectors(("z", *VECTORS.words), np.concatenate([np.ones((1, DIM), np.float32), VECTORS.matrix]))
    loaded = GclsrNetwork(NETWORK, more, seed=8)
    loaded.load_state_dict(state)
    text = [2, unknown_id("x"), 5]
    got = loaded.embed([np.array([i + 1 if i >= 0 else i for i in text], np.int32)])
    assert_close(got, trained.embed([np.array(text, np.int32)]))


# ------------------------------------------------------------ augmentation and attention
PROBABILITIES = {"gwn": 0.5, "ifft": 0.1, "rbn": 0.2, "rzs": 0.2}
WIDTH = 300


def only(name: str) -> dict[str, float]:
    return {operation: float(operation == name) for operation in OPERATIONS}


def word_vectors(n: int) -> torch.Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(5)) + 0.2


def augmented(n: int, p: float, probabilities: dict[str, float], formulas: str = "code", seed: int = 0) -> torch.Tensor:
    w = word_vectors(n)
    torch.manual_seed(seed)
    return augment(w, p, probabilities, formulas)


def test_words_change_with_probability_p_and_draws_follow_the_generator() -> None:
    w, n = word_vectors(4000), 4000
    changed = (augmented(n, 0.3, PROBABILITIES) != w).any(1)
    assert abs(int(changed.sum()) - 1200) < 150  # five standard deviations
    assert not (augmented(n, 0.0, PROBABILITIES) != w).any()
    assert (augmented(n, 1.0, PROBABILITIES) != w).any(1).all()
    assert torch.equal(augmented(n, 0.3, PROBABILITIES), augmented(n, 0.3, PROBABILITIES))
    assert not torch.equal(augmented(n, 0.3, PROBABILITIES, seed=1), augmented(n, 0.3, PROBABILITIES))
    assert torch.equal(w, word_vectors(4000))


def test_gaussian_noise_has_a_ratio_of_6_to_11_decibels() -> None:
    w = word_vectors(2000)
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
    expected -= expected**2 / (2 * WIDTH)
    assert float(counts.mean()) == pytest.approx(expected, abs=0.15)
    assert counts.max() <= 38


def test_the_papers_formulas() -> None:
    w = word_vectors(2000)
    assert float((augmented(2000, 1.0, only("gwn"), "paper") - w).std()) == pytest.approx(0.1, rel=0.01)
    assert torch.equal(augmented(2000, 1.0, only("ifft"), "paper"), w)
    shift = augmented(2000, 1.0, only("rbn"), "paper") - w
    assert float(shift.min()) > -1e-6
    assert float(shift.max()) < 0.1 + 1e-6
    assert float(shift.mean()) == pytest.approx(0.05, rel=0.01)
    dropped = augmented(2000, 1.0, only("rzs"), "paper")
    assert float((dropped == 0).float().mean()) == pytest.approx(0.1, rel=0.02)
    assert_close(dropped[dropped != 0], (w / 0.9)[dropped != 0])


def test_softmax_attention_is_within_each_sentence() -> None:
    torch.manual_seed(0)
    lengths, width = torch.tensor([3, 1, 2]), 4
    sentence, position = torch.tensor([0, 1, 2, 0, 2, 0]), torch.tensor([0, 0, 0, 1, 1, 2])  # by position, as `Layout`
    words = torch.randn(6, width, dtype=torch.float64)
    found = softmax_attention(words, sentence, position, lengths, int(lengths.max()))
    for i in range(6):
        mates = [j for j in range(6) if sentence[j] == sentence[i]]
        scores = [math.exp(float(words[i] @ words[j]) / math.sqrt(width)) for j in mates]
        expected = sum(s / sum(scores) * words[j] for s, j in zip(scores, mates, strict=True))
        torch.testing.assert_close(found[i], expected)
