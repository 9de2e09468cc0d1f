"""The builtin encoder `builtin:tiny`: a two-layer BERT for the builtin corpora, small enough to train in seconds."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from trainables.data.builtin import DIM, FOLDER, word_vectors

VERSION = "95bda035a8a6"  # in the folder's name: change it with the weights or the tokenizer
SEED = 20212
HIDDEN, INNER, LAYERS, POSITIONS = 64, 128, 2, 128
# Root mean squares of the parts of an initial embedding. The common part points all vectors one way, and two "rogue"
# dimensions carry large numbers without meaning: the defects of pre-trained encoders (Timkey and van Schijndel,
# arXiv:2109.04404) that contrastive training repairs. So there is something to learn, and to search for.
MEANING, OWN, COMMON, POSITION = 1.0, 0.3, 0.5, 0.1
ROGUE, ROGUE_DIMS = 6.0, 2
WEIGHT = 0.05  # standard deviation of the matrices


def encoder_folder(language: str, cache_dir: str | Path) -> Path:
    """The Hugging Face folder of the builtin encoder, written on the first call.

    A BERT with 2 layers, hidden size 64 and 2 heads, and a WordPiece tokenizer of the builtin vocabulary, which falls
    back to letters (English) and has every everyday Chinese character (GB 2312, level 1), so that other text can be
    encoded too. Nothing was pre-trained: the word embeddings are a random projection of `word_vectors` with noise, in
    the place of what pre-training would have learned; all other weights are random. Equal calls find the same folder.

    Args:
        language: "en" or "zh".
        cache_dir: where the folder is made.
    Raises: DataError for a language without a builtin corpus; OSError if cache_dir cannot be written.
    """
    folder = Path(cache_dir) / f"builtin-tiny-{language}-{VERSION}"
    if folder.is_dir():
        return folder
    from safetensors.numpy import save_file

    weights = _weights(language)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}-{uuid4().hex}"
    made.mkdir()
    try:
        for file in (FOLDER / f"tiny_{language}").iterdir():
            shutil.copyfile(file, made / file.name)
        save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        os.replace(made, folder)
    except OSError:
        if not folder.is_dir():  # else another process was first: its folder is the same
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _weights(language: str) -> dict[str, NDArray[np.float32]]:
    """BERT's parameters by name. They are drawn here: stored, they would take two megabytes."""
    words = word_vectors(language)
    rng = np.random.default_rng([SEED, language == "zh"])
    found = {"embeddings.word_embeddings.weight": _embeddings(language, *words, rng)}

    def matrix(name: str, rows: int, columns: int, scale: float = WEIGHT, identity: bool = False) -> None:
        drawn = scale * rng.standard_normal((rows, columns))
        found[f"{name}.weight"] = (np.eye(rows) + drawn if identity else drawn).astype(np.float32)
        if "embeddings" not in name:
            found[f"{name}.bias"] = np.zeros(rows, np.float32)

    matrix("embeddings.position_embeddings", POSITIONS, HIDDEN, POSITION)
    matrix("embeddings.token_type_embeddings", 2, HIDDEN, POSITION)
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
        matrix(f"{layer}.attention.self.query", HIDDEN, HIDDEN)
        matrix(f"{layer}.attention.self.key", HIDDEN, HIDDEN)
        # The identity is added, so that [CLS] starts as an average of the words.
        matrix(f"{layer}.attention.self.value", HIDDEN, HIDDEN, identity=True)
        matrix(f"{layer}.attention.output.dense", HIDDEN, HIDDEN, identity=True)
        matrix(f"{layer}.intermediate.dense", INNER, HIDDEN)
        matrix(f"{layer}.output.dense", HIDDEN, INNER)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    matrix("pooler.dense", HIDDEN, HIDDEN)
    for name in norms:
        found |= {f"{name}.weight": np.ones(HIDDEN, np.float32), f"{name}.bias": np.zeros(HIDDEN, np.float32)}
    return found


def _embeddings(
    language: str, words: list[str], vectors: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """(tokens, hidden) initial word embeddings; a Chinese character is the mean of the words that it is in."""
    tokenizer = json.loads((FOLDER / f"tiny_{language}" / "tokenizer.json").read_text(encoding="utf-8"))
    rows: dict[str, int] = tokenizer["model"]["vocab"]
    projected = vectors @ rng.standard_normal((DIM, HIDDEN))
    projected /= np.sqrt(np.mean(projected**2))
    meaning = rng.standard_normal((len(rows), HIDDEN))
    parts: dict[int, list[int]] = {}
    for number, word in enumerate(words):
        for piece in (word,) if language == "en" else word:
            if piece in rows:
                parts.setdefault(rows[piece], []).append(number)
    for row, numbers in parts.items():  # other tokens keep their random numbers
        meaning[row] = projected[numbers].mean(axis=0)
    own, common = rng.standard_normal(meaning.shape), rng.standard_normal(HIDDEN)
    embeddings = MEANING * meaning + OWN * own + COMMON * common
    embeddings[:, :ROGUE_DIMS] += ROGUE * rng.standard_normal((len(rows), ROGUE_DIMS))
    embeddings[0] = 0.0  # [PAD]
    return embeddings.astype(np.float32)
