"""Tiny random encoders of every family, with tokenizers, as Hugging Face folders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    DistilBertConfig,
    DistilBertModel,
    MPNetConfig,
    MPNetModel,
    MPNetTokenizer,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizer,
)

FAMILIES = ("bert", "roberta", "mpnet", "distilbert")
WORDS = ["red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps", "the", "a", "on", "mat", "##s", "##ing"]
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}


def tokenizer_of(family: str) -> Any:
    """A tokenizer of the family's kind, with the family's special tokens."""
    if family == "roberta":
        pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *"abcdefghijklmnopqrstuvwxyz"]
        return RobertaTokenizer(vocab={p: i for i, p in enumerate(pieces)}, merges=[])
    if family == "mpnet":
        return MPNetTokenizer(vocab={p: i for i, p in enumerate(["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *WORDS])})
    return BertTokenizer(vocab={p: i for i, p in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])})


def model_of(family: str, seed: int = 0) -> PreTrainedModel:
    """A random encoder whose weights are large enough for attention to matter; pooler included where there is one."""
    words = len(tokenizer_of(family))
    torch.manual_seed(seed)
    model: PreTrainedModel
    if family == "bert":
        model = BertModel(BertConfig(vocab_size=words, **SHAPE))
    elif family == "roberta":
        model = RobertaModel(RobertaConfig(vocab_size=words, **SHAPE))
    elif family == "mpnet":
        model = MPNetModel(MPNetConfig(vocab_size=words, **SHAPE))
    else:
        model = DistilBertModel(
            DistilBertConfig(vocab_size=words, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=40)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


def save(family: str, folder: Path, seed: int = 0) -> Path:
    """Write model and tokenizer to a folder."""
    model_of(family, seed).save_pretrained(folder)
    tokenizer_of(family).save_pretrained(folder)
    return folder


@cache
def sentences(lengths: Sequence[int] = (4, 1, 9, 4, 0, 12, 7, 4), seed: int = 0) -> list[np.ndarray]:
    """Random sentences of ids that every family's tokenizer has and that are no special tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 19, n).astype(np.int32) for n in lengths]
