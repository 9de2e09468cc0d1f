"""GCLSR: batches, optimiser and schedule, changed sentences."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from fake_tools import FakeTools
from torch import nn

from trainables.contract.config import build
from trainables.contract.errors import DataError
from trainables.contract.registry import declared
from trainables.contract.trial import TrialSpec
from trainables.data.tokens import TokenColumn
from trainables.encoders.word_vectors import WordVectors
from trainables.methods.gclsr import method as gclsr
from trainables.methods.gclsr.config import GclsrConfig, back_translations
from trainables.methods.gclsr.network import (
    GclsrNetwork,
)
from trainables.methods.losses import grouped_cosine
from trainables.methods.method import Batch, Examples, all_columns
from trainables.methods.sda.edits import eda
from trainables.training.method_trial import inputs_key, load_inputs

CONFIG = GclsrConfig(filters=4, region_sizes=(1, 2), max_words=8, batch_size=8, epochs=4, warmup_epochs=1)


def examples(n: int) -> Examples:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, n)
    flat = rng.integers(-3, 20, lengths.sum()).astype(np.int32)
    return Examples({"sentence": TokenColumn(flat, np.concatenate([[0], np.cumsum(lengths)]))})


def vectors() -> WordVectors:
    matrix = np.random.default_rng(1).standard_normal((20, 10)).astype(np.float32)
    return WordVectors(tuple(map(str, range(20))), matrix)


def test_a_smaller_last_batch_is_dropped_unless_alone() -> None:
    assert [len(b) for b in gclsr.plan(examples(30), CONFIG, 0)] == [8] * 3 * 4
    assert [len(b) for b in gclsr.plan(examples(32), CONFIG, 0)] == [8] * 4 * 4
    assert [len(b) for b in gclsr.plan(examples(5), CONFIG, 0)] == [5] * 4
    assert [len(b) for b in gclsr.plan(examples(30), replace(CONFIG, sample_size=10), 0)] == [8] * 4


def test_num_groups_is_another_way_to_say_group_size() -> None:
    draw = torch.Generator().manual_seed(0)
    z = {name: torch.randn(3, 4096, generator=draw) for name in ("q1", "z1", "q2", "z2")}
    by_size = gclsr.loss(z, replace(CONFIG, group_size=16))
    assert by_size == grouped_cosine(z["q1"], z["z1"], z["q2"], z["z2"], 16)
    assert by_size == gclsr.loss(z, replace(CONFIG, group_size=4, num_groups=256))
    assert by_size != gclsr.loss(z, replace(CONFIG, group_size=4))


def schedule(config: GclsrConfig, steps: int) -> list[tuple[float, float, float]]:
    """(base rate, predictor rate, momentum) at which each optimiser step runs."""
    network = nn.ModuleDict({"backbone": nn.Linear(1, 1), "predictor": nn.Linear(1, 1)})
    sgd, rates = gclsr.optimiser(network, config, steps, 1)
    seen = []
    for _ in range(steps):
        base, predictor = sgd.param_groups
        assert base["momentum"] == predictor["momentum"]
        seen.append((base["lr"], predictor["lr"], base["momentum"]))
        sgd.step()
        rates.step()
    return seen


def test_the_schedule_of_a_run_and_of_one_cut_short() -> None:
    peak = 0.03 * 8 / 128
    seen = schedule(CONFIG, 16)
    assert seen[0] == (peak, peak, 0.9)  # the public loop's first step
    assert seen[1] == (0.0, 1.0, 0.9)
    assert seen[4] == (peak, 1.0, 0.9)
    assert seen[5] == (peak, 1.0, 0.8)
    assert 0 < seen[15][0] < seen[14][0] < peak
    assert [momentum for _, _, momentum in schedule(CONFIG, 8)] == [0.9] * 3 + [0.8] * 5
    together = schedule(replace(CONFIG, predictor_lr=None), 16)
    assert all(base == predictor for base, predictor, _ in together)


def test_no_warmup_and_no_momentum() -> None:
    peak = 0.03 * 8 / 128
    seen = schedule(replace(CONFIG, warmup_epochs=0, momentum=0.0, momentum_after_warmup=0.8), 16)
    assert [momentum for _, _, momentum in seen] == [0.0] + [0.8] * 15
    assert seen[1][0] == peak
    assert schedule(replace(CONFIG, momentum_after_warmup=0.0), 16)[-1][2] == 0.0


def test_every_parameter_is_in_one_group_with_decay() -> None:
    network = GclsrNetwork(CONFIG, vectors(), 0)
    sgd, _ = gclsr.optimiser(network, CONFIG, 16, 4)
    counts = {group["name"]: len(group["params"]) for group in sgd.param_groups}
    assert counts == {"base": 2 * 2 + 3 * 4, "predictor": 2 + 2 + 2}
    assert sum(counts.values()) == len(list(network.parameters()))
    assert all(g["weight_decay"] == 0.001 and g["nesterov"] for g in sgd.param_groups)


# ------------------------------------------------------------ sentences
WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "at"),
    *("ten", "past", "noon", "on", "its", "way", "home", "again", "today"),
]
SYNONYMS = {"quick": ["fast"], "dog": ["hound", "cur"]}
TEXTS = {"sentence": ["a b c", "b c d", "c d e"]}


def synonyms(word: str) -> list[str]:
    return SYNONYMS.get(word, [])


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
    examples = gclsr.prepare(TEXTS, config, 0, FakeTools())
    assert examples.facts == {"sentence_augmentation_share": 1 / 3}
    views = all_columns(examples, Batch(np.array([0, 1])), config, np.random.default_rng(0))
    assert [len(row) for row in views["augmented"]] == [4, 3]
    with pytest.raises(DataError, match="has none of the training sentences"):
        gclsr.prepare({"sentence": ["other"]}, config, 0, FakeTools())
    with pytest.raises(DataError, match="no such file: missing"):
        back_translations("missing.tsv")
    file.write_text("sentence\tback\na\tb\n", encoding="utf-8")
    with pytest.raises(DataError, match="expected columns sentence and translation, got no translation"):
        declared("gclsr").preflight(
            {"params": {"sentence_augmentation": "back_translation", "back_translations": str(file)}}
        )


def test_back_translations_and_outside_texts_have_word_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_eda_needs_words_between_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chinese as it is usually written is one word to it: it would change nothing."""
    monkeypatch.setattr(gclsr, "wordnet", lambda _: synonyms)
    config, desk = build(GclsrConfig, {"sentence_augmentation": "eda"}), FakeTools("zh")
    whole, apart = ["一个男人在弹吉他。", "今天天气很好 today", "两只狗"], ["一个 男人 在 弹 吉他", "两 只 狗", ""]
    with pytest.raises(DataError, match=r"^params.sentence_augmentation: eda changes words with blanks between"):
        gclsr.prepare({"sentence": whole}, config, 0, desk)
    assert gclsr.prepare({"sentence": apart * 9}, config, 0, desk).facts["sentence_augmentation_share"] > 0


def test_the_second_view_is_of_the_changed_sentence() -> None:
    config = GclsrConfig(filters=4, region_sizes=(1, 2), max_words=8, augmentation="none", self_attention=False)
    network = GclsrNetwork(config, vectors(), 0).train()
    rows = [np.array([1, 2, 3], np.int32), np.array([4], np.int32)]
    other = [np.array([5, 6], np.int32), np.array([4, 7, 8], np.int32)]
    z, changed = network.encode({"sentence": rows, "augmented": other}), network.encode({"sentence": other})
    torch.testing.assert_close(z["second"], changed["first"])
    torch.testing.assert_close(z["first"], network.encode({"sentence": rows})["second"])


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"sentence_augmentation": "back_translation"}, "back_translations"),
        ({"attention_form": "bert", "self_attention": False}, "attention_form"),
        ({"attention_form": "bert", "attention_at_eval": True}, "attention_form"),
    ],
)
def test_values_that_do_not_go_together(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^{key}: [^;]*$"):
        build(GclsrConfig, values)
