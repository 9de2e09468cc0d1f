"""The TextCNN without work on padding equals the padded one; the network's views, evaluation and unknown words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from trainables.encoders.word_vectors import WordVectors, unknown_id, unknown_vectors
from trainables.methods.gclsr.config import GclsrConfig
from trainables.methods.gclsr.pwva import MASKED_SCORE
from trainables.methods.gclsr.textcnn import GclsrNetwork, Layout, TextCNN

DIM, LONGEST = 7, 12
CONFIG = GclsrConfig(filters=5, region_sizes=(1, 3, 12), max_words=LONGEST, batch_size=4)
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
    with pytest.raises(ValueError, match=r"expected 1\.\.12 words per sentence, got 0\.\.13"):
        Layout.of(np.array([0, 13]), LONGEST)


def test_evaluation_keeps_padding_vectors_and_leaves_out_attention() -> None:
    network = GclsrNetwork(CONFIG, VECTORS, seed=3).eval()
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
    network = GclsrNetwork(CONFIG, VECTORS, seed=3).train()
    views = {"sentence": sentences([4, 6, 2])}
    torch.manual_seed(1)
    pooled = network.encode(views)
    assert list(pooled) == ["first", "second"]
    assert pooled["first"].shape == (3, 15)
    assert not torch.equal(pooled["first"], pooled["second"])
    torch.manual_seed(1)
    assert torch.equal(network.encode(views)["second"], pooled["second"])
    plain = GclsrNetwork(GclsrConfig(**{**vars(CONFIG), "augmentation": "none"}), VECTORS, seed=3)
    pooled = plain.encode(views)
    assert torch.equal(pooled["first"], pooled["second"])
    z = network.project(pooled)
    assert {name: tuple(v.shape) for name, v in z.items()} == dict.fromkeys(("z1", "z2", "q1", "q2"), (3, 4096))
    assert torch.equal(z["q1"], z["q2"])  # equal views, batch statistics of each view alone


def test_unknown_words_keep_their_vector_unless_resampled_in_training() -> None:
    rows = [np.array([unknown_id("x"), 0, unknown_id("y")], np.int32), np.array([unknown_id("x")], np.int32)]
    options = {**vars(CONFIG), "region_sizes": (1,), "augmentation": "none", "self_attention": False}
    fixed = GclsrNetwork(GclsrConfig(**options), VECTORS, seed=3)
    vectors = torch.from_numpy(unknown_vectors(np.array([unknown_id("x")]), 3, DIM))
    expected = dense(fixed.backbone.convs, torch.cat([vectors, fixed.padding[None].repeat(11, 1)])[None])
    assert_close(fixed.encode({"sentence": rows})["first"][1:], expected)
    resampled = GclsrNetwork(GclsrConfig(**{**options, "oov": "resample"}), VECTORS, seed=3)
    pooled = resampled.encode({"sentence": rows})
    assert not torch.equal(pooled["first"], pooled["second"])
    assert_close(resampled.embed(rows), fixed.embed(rows))


def test_a_checkpoint_holds_what_another_vocabulary_and_seed_would_change() -> None:
    trained = GclsrNetwork(CONFIG, VECTORS, seed=3)
    state = trained.state_dict()
    assert "vectors" not in state
    more = WordVectors(("z", *VECTORS.words), np.concatenate([np.ones((1, DIM), np.float32), VECTORS.matrix]))
    loaded = GclsrNetwork(CONFIG, more, seed=8)
    loaded.load_state_dict(state)
    text = [2, unknown_id("x"), 5]
    got = loaded.embed([np.array([i + 1 if i >= 0 else i for i in text], np.int32)])
    assert_close(got, trained.embed([np.array(text, np.int32)]))


def test_the_seed_decides_the_weights_and_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    first, same, other = (GclsrNetwork(CONFIG, VECTORS, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["backbone.convs.0.weight"], other["backbone.convs.0.weight"])
    assert not torch.equal(first["padding"], other["padding"])
