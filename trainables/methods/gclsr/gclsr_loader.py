"""Sentence vectors of an exported GCLSR model: `Model("folder").encode(["a sentence"])`. Needs torch and safetensors.

This file travels with the model and stands alone: a TextCNN over word vectors (Appl. Sci. 2023, 13, 9873), with the
cleaning, the unknown words and the padding of the program that trained it.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+|[a-z]+")
LONGEST_CHINESE_WORD = 6
PLACEHOLDER = "sickeningly"  # the word of an empty sentence
PADDING_SCORE = 1e-9  # what the attention of the public code puts where there is no word


class Model:
    """Args: folder: holds config.json, words.txt and model.safetensors."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        vocabulary = (folder / "words.txt").read_text("utf-8").split("\n")
        self._number = {word: i for i, word in enumerate(vocabulary)}
        self._longest = min(LONGEST_CHINESE_WORD, max(map(len, vocabulary)))
        tensors = load_file(folder / "model.safetensors")
        self._vectors, self._padding = tensors.pop("vectors"), tensors.pop("padding")
        count = len(self.config["region_sizes"])
        self._filters = [(tensors[f"convs.{i}.weight"], tensors[f"convs.{i}.bias"]) for i in range(count)]

    @torch.no_grad()
    def encode(self, sentences: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """(n, filters * regions) sentence vectors, not normalised."""
        parts = [self._batch(sentences[at : at + batch_size]) for at in range(0, len(sentences), batch_size)]
        vectors: NDArray[np.float32] = torch.cat(parts).numpy()
        return vectors

    def words(self, sentence: str) -> list[str]:
        """What a sentence is read as, at least one word."""
        if self.config["language"] == "en":
            text = sentence.replace("'", "").replace("’", "").lower()
            return re.sub("[^a-z]", " ", text).split() or [PLACEHOLDER]
        found: list[str] = []
        for run in CHINESE.findall(sentence.lower()):
            found += [run] if run.isascii() else self._longest_matches(run)
        return found or [PLACEHOLDER]

    def _longest_matches(self, run: str) -> Iterator[str]:
        start = 0
        while start < len(run):
            lengths = range(min(self._longest, len(run) - start), 0, -1)
            length = next((n for n in lengths if run[start : start + n] in self._number), 1)
            yield run[start : start + length]
            start += length

    def _batch(self, sentences: Sequence[str]) -> Tensor:
        positions = self.config["max_words"]
        rows = [self.words(sentence)[:positions] for sentence in sentences]
        table = self._padding.expand(len(rows), positions, -1).clone()
        mask = torch.zeros(len(rows), positions)
        for i, row in enumerate(rows):
            mask[i, : len(row)] = 1
            for j, word in enumerate(row):
                known = self._number.get(word)
                table[i, j] = self._vectors[known] if known is not None else self._unknown(word)
        if self.config["attention_at_eval"]:
            scores = table @ table.transpose(1, 2) / math.sqrt(table.shape[2])
            inside = (mask[:, :, None] * mask[:, None, :]).bool()
            table = torch.where(inside, scores, PADDING_SCORE).sum(2, keepdim=True) * table
        return torch.cat([F.conv2d(table[:, None], w, b).squeeze(3).amax(2).relu() for w, b in self._filters], dim=1)

    def _unknown(self, word: str) -> Tensor:
        """The random vector of a word without one: a hash (splitmix64) of word, component and seed."""
        dim = len(self._padding)
        with np.errstate(over="ignore"):  # wrapping is what the hash is made of
            golden = np.uint64(0x9E3779B97F4A7C15)
            number = np.array([-1 - (zlib.crc32(word.encode()) >> 1)], dtype=np.int64).astype(np.uint64)
            own = _mixed(number * golden + np.uint64(self.config["vector_seed"] & 0xFFFFFFFF))
            x = _mixed(own + np.arange(dim, dtype=np.uint64) * golden)
        unit = (x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        return torch.from_numpy((2 * unit - 1) * np.float32(math.sqrt(3 / dim)))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
