"""GCLSR's sentence-level augmentation (EDA, back-translation) and its softmax attention."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from trainables.contract.errors import DataError
from trainables.contract.knobs import build, problems
from trainables.contract.registry import declared
from trainables.contract.spec import TrialSpec
from trainables.data.tokens import TokenColumn
from trainables.encoders.word_vectors import WordVectors
from trainables.methods.gclsr import method as gclsr
from trainables.methods.gclsr.config import GclsrConfig
from trainables.methods.gclsr.pwva import softmax_attention
from trainables.methods.gclsr.sentences import back_translations, eda
from trainables.methods.method import Batch
from trainables.training.method_trial import inputs_key, load_inputs

WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "at"),
    *("ten", "past", "noon", "on", "its", "way", "home", "again", "today"),
]
SYNONYMS = {"quick": ["fast"], "dog": ["hound", "cur"]}
TEXTS = {"sentence": ["a b c", "b c d", "c d e"]}


def synonyms(word: str) -> list[str]:
    return SYNONYMS.get(word, [])


class Desk:
    """Words are numbered as they come."""

    language = "en"

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def tokenise(self, texts: Any, prompt: str = "") -> TokenColumn:
        assert prompt in ("", "query")
        rows = [[self.numbers.setdefault(w, len(self.numbers)) for w in text.split()] for text in texts]
        return TokenColumn(np.array([i for row in rows for i in row], np.int32), np.cumsum([0, *map(len, rows)]))

    embed = parse = cached = None


def test_eda_does_one_of_four_things() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(2000):
        found = eda(WORDS, Random(seed), 0.1, synonyms)
        changed = Counter(found) - Counter(WORDS), Counter(WORDS) - Counter(found)
        extra, gone = (sum(c.values()) for c in changed)
        if len(found) == len(WORDS) + 1:
            assert set(changed[0]) <= {"fast", "hound", "cur"}
            kinds["insertion"] += 1
        elif len(found) == len(WORDS) and extra == gone > 0:
            assert set(changed[1]) <= set(SYNONYMS)
            kinds["synonym"] += 1
        elif sorted(found) == sorted(WORDS) and found != WORDS:
            assert sum(a != b for a, b in zip(found, WORDS, strict=True)) == 2
            kinds["swap"] += 1
        elif extra == 0 and gone:
            kinds["deletion"] += 1
        else:
            assert found == WORDS  # two equal words swapped, or nothing left out: 0.9^19
            kinds["none"] += 1
    assert all(400 < kinds[k] < 600 for k in ("insertion", "synonym", "swap"))  # 500 expected, sd 19
    assert kinds["deletion"] > 350
    assert {len(eda(["a"], Random(seed), 0.9, synonyms)) for seed in range(50)} == {1}
    assert all(eda(["a", "b"], Random(seed), 0.99, synonyms) for seed in range(50))


def test_back_translations_come_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "back.tsv"
    file.write_text("sentence\ttranslation\na b c\tc b a a\nx\ty\n", encoding="utf-8")
    config = build(GclsrConfig, {"sentence_augmentation": "back_translation", "back_translations": str(file)})
    examples = gclsr.prepare(TEXTS, config, 0, Desk())
    assert examples.facts == {"sentence_augmentation_share": 1 / 3}
    views = gclsr.views(examples, Batch(np.array([0, 1])), config, np.random.default_rng(0))
    assert [len(row) for row in views["augmented"]] == [4, 3]
    with pytest.raises(DataError, match="has none of the training sentences"):
        gclsr.prepare({"sentence": ["other"]}, config, 0, Desk())
    with pytest.raises(DataError, match="no such file: missing"):
        back_translations("missing.tsv")
    file.write_text("sentence\tback\na\tb\n", encoding="utf-8")
    with pytest.raises(DataError, match="expected columns sentence and translation, got no translation"):
        declared("gclsr").preflight({"params": {
            "sentence_augmentation": "back_translation", "back_translations": str(file),
        }})  # fmt: skip


def test_words_of_back_translations_and_of_outside_texts_have_their_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["a", "cat", "sleeps", "dog", "runs", "the", "feline", "naps"]
    (tmp_path / "vectors.txt").write_text("".join(f"{word} {n} 1 0 2\n" for n, word in enumerate(words)))
    (tmp_path / "train.txt").write_text("a cat sleeps\nthe dog runs\n")
    (tmp_path / "back.tsv").write_text("sentence\ttranslation\na cat sleeps\tthe feline naps\n")
    spec = TrialSpec(
        method="gclsr", encoder=str(tmp_path / "vectors.txt"), metric="builtin_dev", folder="unused",
        data={"train": str(tmp_path / "train.txt"), "dev": ["builtin"], "language": "en"},
    )  # fmt: skip
    plain = load_inputs(spec, torch.device("cpu"))
    assert isinstance(plain.source, WordVectors)
    assert {*plain.source.words} == {"a", "cat", "sleeps", "dog", "runs", "the"}
    made = {"sentence_augmentation": "back_translation", "back_translations": str(tmp_path / "back.tsv")}
    changed = replace(spec, params=made)
    inputs = load_inputs(changed, torch.device("cpu"))
    examples = gclsr.prepare(inputs.corpus.columns, build(GclsrConfig, made), 0, inputs.tools)
    assert (examples.columns["augmented"][0] >= 0).all()
    assert inputs_key(changed) != inputs_key(spec)
    monkeypatch.setattr("trainables.training.method_trial.evaluation_named", lambda name: name)
    outside = load_inputs(replace(spec, data={**spec.data, "evaluations": {"topics": None}}), torch.device("cpu"))
    assert isinstance(outside.source, WordVectors)
    assert {*outside.source.words} == {*words}


def test_eda_prepares_once_a_run_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gclsr, "wordnet", lambda _: synonyms)
    config = build(GclsrConfig, {"sentence_augmentation": "eda"})
    texts = {"sentence": [" ".join(WORDS)] * 20}
    flats = [gclsr.prepare(texts, config, seed, Desk()).columns["augmented"].flat.tolist() for seed in (1, 1, 2)]
    assert flats[0] == flats[1] != flats[2]


def test_eda_needs_words_between_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chinese as it is usually written is one word to it: it would change nothing."""
    monkeypatch.setattr(gclsr, "wordnet", lambda _: synonyms)
    config, desk = build(GclsrConfig, {"sentence_augmentation": "eda"}), Desk()
    desk.language = "zh"
    whole, apart = ["一个男人在弹吉他。", "今天天气很好 today", "两只狗"], ["一个 男人 在 弹 吉他", "两 只 狗", ""]
    with pytest.raises(DataError, match=r"^params.sentence_augmentation: eda changes words with blanks between"):
        gclsr.prepare({"sentence": whole}, config, 0, desk)
    assert gclsr.prepare({"sentence": apart * 9}, config, 0, desk).facts["sentence_augmentation_share"] > 0


def test_the_second_view_is_of_the_changed_sentence() -> None:
    config = GclsrConfig(filters=4, region_sizes=(1, 2), max_words=8, augmentation="none", self_attention=False)
    matrix = np.random.default_rng(1).standard_normal((20, 10)).astype(np.float32)
    network = gclsr.network(config, WordVectors(tuple(map(str, range(20))), matrix), 0).train()
    rows = [np.array([1, 2, 3], np.int32), np.array([4], np.int32)]
    other = [np.array([5, 6], np.int32), np.array([4, 7, 8], np.int32)]
    z, changed = network.encode({"sentence": rows, "augmented": other}), network.encode({"sentence": other})
    torch.testing.assert_close(z["second"], changed["first"])
    torch.testing.assert_close(z["first"], network.encode({"sentence": rows})["second"])


def test_softmax_attention_is_within_each_sentence() -> None:
    torch.manual_seed(0)
    lengths, width = torch.tensor([3, 1, 2]), 4
    sentence, position = torch.tensor([0, 1, 2, 0, 2, 0]), torch.tensor([0, 0, 0, 1, 1, 2])  # by position, as `Layout`
    words = torch.randn(6, width, dtype=torch.float64)
    found = softmax_attention(words, sentence, position, lengths)
    for i in range(6):
        mates = [j for j in range(6) if sentence[j] == sentence[i]]
        scores = [math.exp(float(words[i] @ words[j]) / math.sqrt(width)) for j in mates]
        expected = sum(s / sum(scores) * words[j] for s, j in zip(scores, mates, strict=True))
        torch.testing.assert_close(found[i], expected)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"sentence_augmentation": "back_translation"}, "back_translations"),
        ({"attention_form": "bert", "self_attention": False}, "attention_form"),
        ({"attention_form": "bert", "attention_at_eval": True}, "attention_form"),
    ],
)
def test_values_that_do_not_go_together(values: dict[str, Any], key: str) -> None:
    assert [k for k, _ in problems(GclsrConfig, values)] == [key]
