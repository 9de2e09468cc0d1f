"""EdaCSE: views with new marks at every use, on ids and on text, and the two terms of the loss."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trainables.data.tokens import TokenColumn
from trainables.methods.edacse import method as edacse
from trainables.methods.edacse.config import EdacseConfig
from trainables.methods.edacse.insertion import ALPHABETS
from trainables.methods.losses import info_nce
from trainables.methods.method import Batch, Examples

TEXTS = ["今天天气很好", "我要买 iPhone13 手机", "", "两个", "他们在医院里"]
CONFIG = EdacseConfig(batch_size=2, epochs=3, sample_size=None, max_marks=3)


class Desk:
    """Tools whose tokens are code points; `glue` runs of letters are one token and marks glue to them."""

    language = "zh"

    def __init__(self, glue: bool = False) -> None:
        self.pattern = re.compile(r"\w+[^\w\s]*|\S" if glue else r"[A-Za-z0-9]+|\S")
        self.words: list[str] = []

    def tokenise(self, texts: Sequence[str]) -> TokenColumn:
        rows = [[self._id(word) for word in self.pattern.findall(text)] for text in texts]
        return TokenColumn(np.array([i for r in rows for i in r], np.int32), np.cumsum([0, *map(len, rows)]))

    def _id(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def text(self, tokens: np.ndarray) -> str:
        return "".join(self.words[i] for i in tokens)

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], Any]) -> Any:
        assert name
        assert parts
        return make()

    embed = parse = None


def test_every_use_draws_new_marks() -> None:
    desk = Desk()
    examples = edacse.prepare({"sentence": TEXTS}, CONFIG, 0, desk)
    assert examples.facts == {"inserted_as_text_share": 0.0}
    batch = Batch(np.arange(len(TEXTS)))
    seen = []
    for step in range(2):
        views = edacse.views(examples, batch, CONFIG, np.random.default_rng(step))
        assert views["anchor"] is views["positive"]
        seen.append([desk.text(tokens) for tokens in views["augmented"]])
    plain = [desk.text(tokens) for tokens in views["anchor"]]
    for augmented, text in zip(seen[0], plain, strict=True):
        assert "".join(c for c in augmented if c not in ALPHABETS["english"]) == text
        assert 1 <= len(augmented) - len(text) <= 3 if text else augmented == text
    assert seen[0] != seen[1]
    again = edacse.views(examples, batch, CONFIG, np.random.default_rng(1))["augmented"]
    assert [desk.text(tokens) for tokens in again] == seen[1]


def test_on_text_every_epoch_has_its_own_marks() -> None:
    desk = Desk(glue=True)
    config = replace(CONFIG, sample_size=4)
    examples = edacse.prepare({"sentence": TEXTS}, config, 0, desk)
    assert examples.facts == {"inserted_as_text_share": 1.0}
    uses: dict[int, list[str]] = {}
    for batch in edacse.METHOD.plan(examples, config, 0):
        views = edacse.views(examples, batch, config, np.random.default_rng(9))
        for i, tokens in zip(batch, views["augmented"], strict=True):
            uses.setdefault(i, []).append(desk.text(tokens))
    assert len(uses) == 4
    assert all(len(texts) == 3 for texts in uses.values())  # once an epoch
    assert all(len(set(texts)) > 1 for i, texts in uses.items() if TEXTS[i])
    for i, texts in uses.items():
        bare = TEXTS[i].replace(" ", "")
        assert all("".join(c for c in text if c not in ALPHABETS["english"]) == bare for text in texts)


def test_batches_say_their_epoch() -> None:
    examples = edacse.prepare({"sentence": TEXTS}, CONFIG, 0, Desk())
    batches = list(edacse.METHOD.plan(examples, CONFIG, 0))
    assert [len(b) for b in batches] == [2, 2] * 3  # the fifth sentence would be alone
    assert [b.epoch for b in batches] == [0, 0, 1, 1, 2, 2]


def test_without_marks_or_weight_it_is_simcse() -> None:
    z = {role: torch.randn(4, 6, generator=torch.Generator().manual_seed(i)) for i, role in enumerate("ab")}
    for config in (replace(CONFIG, max_marks=0), replace(CONFIG, lambda_=0.0)):
        examples = edacse.prepare({"sentence": TEXTS}, config, 0, Desk())
        assert type(examples) is Examples
        views = edacse.views(examples, Batch(np.array([0, 3])), config, np.random.default_rng(0))
        assert list(views) == ["anchor", "positive"]
        loss = edacse.loss({"anchor": z["a"], "positive": z["b"]}, config)
        assert loss == info_nce(z["a"], z["b"], config.temperature)
