"""The builtin encoder `builtin:tiny`: a two-layer BERT for the builtin corpora, small enough to train in seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from trainables.data.builtin import chinese, english
from trainables.data.builtin.lexicon import require_language
from trainables.data.builtin.vectors import word_vectors

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_HIDDEN = 64
_CONFIG: dict[str, Any] = {
    "hidden_size": _HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
    "max_position_embeddings": 128, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
_SEED = 20212
# Root mean squares of the parts of an initial embedding. The common part points all vectors one way, and two "rogue"
# dimensions carry large numbers without meaning: the defects of pre-trained encoders (Timkey and van Schijndel,
# arXiv:2109.04404) that contrastive training repairs. So there is something to learn, and to search for.
_MEANING, _OWN, _COMMON, _POSITION = 1.0, 0.3, 0.5, 0.1
_ROGUE, _ROGUE_DIMS = 6.0, 2
# Standard deviation of the matrices. Attention's value and output matrices have the identity added, so that [CLS]
# starts as an average of the words.
_WEIGHT = 0.05


def encoder_folder(language: str, cache_dir: str | Path) -> Path:
    """The Hugging Face folder of the builtin encoder, written on the first call.

    A BERT with 2 layers, hidden size 64 and 2 heads, and a WordPiece tokenizer of the builtin vocabulary, which falls
    back to letters (English) and has every everyday Chinese character (GB 2312, level 1), so that other text can be
    encoded too. Nothing was pre-trained: the word embeddings are a random projection of `word_vectors` with noise, in
    the place of what pre-training would have learned; all other weights are random. Equal calls find the same folder.

    Args:
        language: "en" or "zh".
        cache_dir: where the folder is made; its name holds a hash of all that goes into it.
    Raises: ValueError for a language without a builtin corpus; OSError if cache_dir cannot be written.
    """
    require_language(language)
    folder = Path(cache_dir) / f"builtin-tiny-{language}-{_recipe_hash()}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}-{uuid4().hex}"
    made.mkdir()
    try:
        _write(language, made)
        os.replace(made, folder)
    except OSError:
        if not folder.is_dir():  # else another process was first: its folder is the same
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


@cache
def _recipe_hash() -> str:
    """Hash of the data and the code that the weights and the vocabulary come from."""
    package = files("trainables.data.builtin")
    parts = [package / part for part in ("lexicon.txt", "lexicon.py", "english.py", "chinese.py", "vectors.py")]
    return hashlib.sha256(b"".join(part.read_bytes() for part in (*parts, Path(__file__)))).hexdigest()[:12]


def vocabulary(language: str) -> list[str]:
    """WordPiece tokens in the order of their ids."""
    pieces = dict.fromkeys(_SPECIAL)
    pieces |= dict.fromkeys(map(chr, range(0x21, 0x7F)))  # printable ASCII: letters, digits, marks
    pieces |= dict.fromkeys(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789")
    pieces |= dict.fromkeys("，。；！：？、“”‘’（）《》…—·")
    if language == "en":
        pieces |= dict.fromkeys(_pieces_of_words("en"))
    else:
        pieces |= dict.fromkeys(bytes((0xB0 + i // 94, 0xA1 + i % 94)).decode("gb2312") for i in range(3755))
        pieces |= dict.fromkeys(c for word in _pieces_of_words("zh") for c in word)
    return list(pieces)


def _pieces_of_words(language: str) -> list[str]:
    """The builtin words, and what BERT's split at apostrophes leaves of contractions."""
    source = english if language == "en" else chinese
    stems = ["isn", "wasn", "hasn", "doesn", "didn"] if language == "en" else []
    return [*source.concept_words(), *source.function_words(), *stems]


def _embeddings(language: str, vocabulary: list[str], rng: np.random.Generator) -> NDArray[np.float32]:
    """(tokens, hidden) initial word embeddings; a Chinese character is the mean of the words that it is in."""
    words, vectors = word_vectors(language)
    projected = vectors @ rng.standard_normal((vectors.shape[1], _HIDDEN))
    projected /= np.sqrt(np.mean(projected**2))
    meaning = rng.standard_normal((len(vocabulary), _HIDDEN))
    rows = {piece: i for i, piece in enumerate(vocabulary)}
    parts: dict[int, list[int]] = {}
    for number, word in enumerate(words):
        for piece in (word,) if language == "en" else word:
            if piece in rows:
                parts.setdefault(rows[piece], []).append(number)
    for row, numbers in parts.items():  # other tokens keep their random numbers
        meaning[row] = projected[numbers].mean(axis=0)
    own, common = rng.standard_normal(meaning.shape), rng.standard_normal(_HIDDEN)
    embeddings = _MEANING * meaning + _OWN * own + _COMMON * common
    embeddings[:, :_ROGUE_DIMS] += _ROGUE * rng.standard_normal((len(vocabulary), _ROGUE_DIMS))
    return embeddings.astype(np.float32)


def _write(language: str, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import BertConfig, BertModel, BertTokenizer

    rng = np.random.default_rng([_SEED, language == "zh"])
    pieces = vocabulary(language)
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it was
        model = BertModel(BertConfig(vocab_size=len(pieces), **_CONFIG))
    embeddings = _embeddings(language, pieces, rng)
    embeddings[0] = 0.0  # [PAD]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name:
                parameter.copy_(torch.from_numpy(_initial(name, tuple(parameter.shape), embeddings, rng)))
    model.config.architectures = ["BertModel"]
    model.config.save_pretrained(folder)
    # not model.save_pretrained: it draws a progress bar over the caller's screen
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, do_lower_case=True)
    tokenizer.model_max_length = _CONFIG["max_position_embeddings"]
    tokenizer.save_pretrained(folder)


def _initial(
    name: str, shape: tuple[int, ...], embeddings: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Initial value of the BERT parameter `name`."""
    if name.endswith("word_embeddings.weight"):
        return embeddings
    if name.endswith("bias"):
        return np.zeros(shape, dtype=np.float32)
    scale = _POSITION if "embeddings" in name else _WEIGHT
    if name.endswith(("attention.self.value.weight", "attention.output.dense.weight")):
        return (np.eye(shape[0]) + scale * rng.standard_normal(shape)).astype(np.float32)
    return (scale * rng.standard_normal(shape)).astype(np.float32)
