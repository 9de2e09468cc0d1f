"""Diagnostics of encoders whose behaviour is known."""

from __future__ import annotations

import numpy as np
import pytest

from trainables.data import Pairs, load_pairs
from trainables.diagnostics import FILLERS, length_bias, negation_similarity, pad, relatedness_scatter


def pairs(first, second, gold=(1.0, 2.0), subset=None):
    return Pairs("p", first, second, np.array(gold), subset, "r")


def lengths(texts):
    """An encoder that sees nothing but the number of words."""
    angle = np.array([len(text.split()) / 10 for text in texts])
    return np.stack((np.cos(angle), np.sin(angle)), axis=1)


def content(texts):
    """An encoder that does not see fillers."""
    words = ("dog", "cat", "not")
    return np.array([[1.0, *(text.split().count(w) for w in words)] for text in texts])


def test_length_bias_of_an_encoder_that_sees_only_length_and_of_one_that_does_not():
    data = pairs(["dog dog dog dog", "cat", "dog cat"], ["cat", "dog dog", "cat dog"], (1, 2, 3))
    seen = length_bias(lengths, data, "en")
    assert seen.pairs == 2
    assert seen.after == pytest.approx(1)
    assert seen.before == pytest.approx((np.cos(0.3) + np.cos(0.1)) / 2)
    assert seen.change == pytest.approx(seen.after - seen.before)
    assert length_bias(content, data, "en").change == pytest.approx(0)


def test_padding_reaches_the_other_length():
    assert pad("A dog.", 7, "en").split()[2:] == [*FILLERS["en"], *FILLERS["en"][:2]]
    assert len(pad("小狗", 6, "zh")) == 8


def test_length_bias_faults():
    with pytest.raises(ValueError, match="expected pairs of unequal length"):
        length_bias(content, pairs(["a", "b"], ["c", "d"]), "en")
    with pytest.raises(ValueError, match="expected one of en, zh"):
        length_bias(content, pairs(["a"], ["c d"]), "fr")


def test_negation_similarity_counts_changed_sentences_only():
    sentences, negated = ["dog", "cat"], ["not dog", "cat"]
    assert negation_similarity(content, sentences, negated) == pytest.approx(2 / np.sqrt(2 * 3))
    assert negation_similarity(lengths, sentences, negated) == pytest.approx(np.cos(0.1))
    with pytest.raises(ValueError, match="only unchanged"):
        negation_similarity(content, ["a"], ["a"])


def test_scatter_and_its_contradictions():
    data = pairs(["dog", "cat"], ["dog", "not cat"], (5.0, 3.5), ["ENTAILMENT", "CONTRADICTION"])
    scatter = relatedness_scatter(content, data)
    assert scatter.relatedness.tolist() == [1.0, 0.7]
    assert scatter.cosine[0] == pytest.approx(1)
    assert scatter.contradictions().relatedness.tolist() == [0.7]
    assert scatter.contradictions().label == ["CONTRADICTION"]
    with pytest.raises(ValueError, match="expected pairs with entailment labels"):
        relatedness_scatter(content, pairs(["a"], ["b"], (1.0,))).contradictions()


@pytest.mark.real_data
@pytest.mark.usefixtures("real_data")
def test_scatter_of_real_sick():
    data = load_pairs("sickr", "test", "en")
    scatter = relatedness_scatter(lengths, data)
    assert len(scatter.cosine) == 4927
    assert 0.2 <= scatter.relatedness.min() < scatter.relatedness.max() <= 1
