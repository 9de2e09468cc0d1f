"""Evaluation equals the definition on plain loops, and encodes every sentence once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from launches import HostWaits
from torch.overrides import TorchFunctionMode

from trainables.data.retrieval import Retrieval
from trainables.data.sets import Pairs, load_pairs
from trainables.data.tokens import TokenColumn
from trainables.evaluation import scoring as ev
from trainables.evaluation.metrics import alignment, cosines, uniformity

VECTORS = torch.randn(128, 12, generator=torch.Generator().manual_seed(0))


def tokenise(texts):
    rows = [[ord(c) for c in text] for text in texts]
    flat = np.array([i for row in rows for i in row], dtype=np.int32)
    return TokenColumn(flat, np.cumsum([0, *map(len, rows)]))


class Encoder:
    """Mean of fixed letter vectors; remembers what it was given."""

    def __init__(self):
        self.seen = []

    def __call__(self, sequences):
        self.seen.append([row.tolist() for row in sequences])
        return torch.stack([VECTORS[row].mean(0) if row else torch.zeros(12) for row in self.seen[-1]])


def vector(text):
    return VECTORS[[ord(c) for c in text]].mean(0).numpy()


@pytest.fixture
def sets():
    graded = Pairs("stsb", ["ab", "abc", "x", "ab"], ["ba", "xyz", "y", "zz"], np.array([5, 1, 4.5, 1.0]), None, "r")
    parts = Pairs("sts12", ["ab", "q", "r", "st"], ["abc", "w", "x", "u"], np.array([0, 1, 1, 0.0]), list("mmnn"), "r")
    return [parts, graded]


def test_scores_equal_the_definition(sets):
    result = ev.evaluate(Encoder(), ev.prepare_sets(sets, tokenise))
    assert set(result.metrics) == {"sts12_dev", "stsb_dev", "alignment", "uniformity"}
    for pairs in sets:
        expected = [
            cosines(vector(a)[None], vector(b)[None])[0] for a, b in zip(pairs.first, pairs.second, strict=True)
        ]
        key = f"{pairs.name}_dev"
        assert result.similarities[key] == pytest.approx(expected, abs=1e-6)
        assert result.similarities[key].dtype == np.float32
        assert result.metrics[key] == pytest.approx(scipy.stats.spearmanr(expected, pairs.gold).statistic)
    stsb = sets[1]
    positives = [np.stack([vector(side[i]) for i in (0, 2)]) for side in (stsb.first, stsb.second)]
    assert result.metrics["alignment"] == pytest.approx(alignment(*positives), abs=1e-6)
    distinct = np.stack([vector(t) for t in {*stsb.first, *stsb.second}])
    assert result.metrics["uniformity"] == pytest.approx(uniformity(distinct), abs=1e-5)


def test_a_width_is_scored_as_vectors_of_that_width_are(sets):
    documents = [chr(ord("a") + i) * 2 for i in range(12)]
    ids = [f"d{i}" for i in range(12)]
    ranked = Retrieval("r", ids, documents, ["q1", "q2"], ["ab", "bc"], [{"d1": 2}, {"d3": 1}], "r")
    prepared = ev.prepare_sets(sets, tokenise, [ranked])
    result = ev.evaluate(Encoder(), prepared, widths=(2,))
    cut = ev.evaluate(lambda sequences: Encoder()(sequences)[:, :2], prepared)
    for found, expected in ((result.metrics, cut.metrics), (result.similarities, cut.similarities)):
        of_width = {name.removesuffix("@2"): value for name, value in found.items() if name.endswith("@2")}
        assert of_width.keys() == expected.keys() - {"alignment", "uniformity"}
        for name, value in of_width.items():
            np.testing.assert_array_equal(value, expected[name])
    assert result.metrics["sts12_dev@2"] != result.metrics["sts12_dev"]
    with pytest.raises(ValueError, match="a metric @999: expected at most"):
        ev.evaluate(Encoder(), prepared, widths=(999,))


def test_every_distinct_sentence_is_encoded_once_shortest_first(sets):
    encoder = Encoder()
    ev.evaluate(encoder, ev.prepare_sets(sets, tokenise))
    (seen,) = encoder.seen
    texts = {t for p in sets for side in (p.first, p.second) for t in side}
    assert sorted("".join(map(chr, row)) for row in seen) == sorted(texts)
    assert [len(row) for row in seen] == sorted(len(row) for row in seen)


def test_test_split_adds_the_other_aggregations(sets):
    metrics = ev.evaluate(Encoder(), ev.prepare_sets(sets, tokenise), "test").metrics
    assert {"sts12_test", "sts12_test_mean", "sts12_test_wmean", "stsb_test"} <= set(metrics)
    assert "stsb_test_mean" not in metrics


@pytest.mark.parametrize("broken", [math.nan, 1.0])
def test_nan_and_collapsed_vectors_have_no_score(sets, broken):
    noise = torch.full((20, 12), broken) * (1 + 1e-8)
    result = ev.evaluate(lambda sequences: noise[: len(sequences)], ev.prepare_sets(sets, tokenise))
    assert math.isnan(result.metrics["stsb_dev"])


def test_reduced_precision_vectors_are_scored_in_float32(sets):
    prepared = ev.prepare_sets(sets, tokenise)
    encoder = Encoder()
    halved = ev.evaluate(lambda s: encoder(s).bfloat16(), prepared)
    assert halved.similarities["stsb_dev"] == pytest.approx(
        ev.evaluate(encoder, prepared).similarities["stsb_dev"], abs=0.02
    )


def test_alignment_is_of_sets_on_the_scale_of_sts_b(sets):
    """On 0 to 100 nearly every pair lies above 4; a binary set has no grades."""
    percent = Pairs("mine", ["ab", "x", "abc"], ["ba", "y", "zz"], np.array([100, 7, 30.0]), None, "r")
    found = [ev.evaluate(Encoder(), ev.prepare_sets(s, tokenise)).metrics.get("alignment") for s in
             (sets[:1], [percent], [percent, sets[1]], sets[1:])]  # fmt: skip
    assert found[:2] == [None, None]
    assert found[2] == found[3] is not None


class OnCuda(TorchFunctionMode):
    """Tensors say that they are on a GPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return True if func == torch.Tensor.is_cuda.__get__ else func(*args, **(kwargs or {}))


@pytest.mark.parametrize("n", [40, 900])  # all sentences, and a sample of them
def test_on_a_gpu_geometry_is_computed_there_and_read_once(n):
    vectors = torch.randn(2 * n, 12, generator=torch.Generator().manual_seed(1))
    vectors[3] = 0
    sides = [[f"{i:04}" for i in range(k, 2 * n, 2)] for k in (0, 1)]
    prepared = ev.prepare_sets([Pairs("stsb", *sides, np.arange(n) % 6.0, None, "r")], tokenise)
    with HostWaits() as on_the_host:
        expected = ev.evaluate(lambda _: vectors, prepared)
    with HostWaits() as seen, OnCuda(), torch.autocast("cpu", torch.bfloat16):
        result = ev.evaluate(lambda _: vectors, prepared)
    assert result.metrics == pytest.approx(expected.metrics, abs=1e-6)
    for counts in (on_the_host.counts, seen.counts):
        counts.pop("from_numpy")  # the rows of pairs and sample go there as they are, once an evaluation, not a step
    assert on_the_host.counts == {"cpu": 2, "numpy": 2}
    assert seen.counts == {"cpu": 1, "numpy": 1, "tolist": 1}, "the set's cosines, and two numbers"


def test_names_must_differ(sets):
    with pytest.raises(ValueError, match="different names, got stsb, stsb"):
        ev.prepare_sets([sets[1], sets[1]], tokenise)


@pytest.mark.real_data
@pytest.mark.usefixtures("real_data")
def test_a_bag_of_letters_scores_real_sets_as_scipy_does():
    sets = [load_pairs(name, "dev", "en") for name in ("stsb", "sickr")]
    prepared = ev.prepare_sets(sets, lambda texts: tokenise([t.encode("ascii", "ignore").decode() for t in texts]))
    result = ev.evaluate(Encoder(), prepared)
    for pairs in sets:
        expected = scipy.stats.spearmanr(result.similarities[f"{pairs.name}_dev"], pairs.gold).statistic
        assert result.metrics[f"{pairs.name}_dev"] == pytest.approx(expected, abs=1e-9)
    assert result.metrics["stsb_dev"] > 0.3  # letters alone tell something
