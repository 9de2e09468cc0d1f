"""EdaCSE (Appl. Sci. 2023, 13, 10120): SimCSE plus a second InfoNCE term with inserted punctuation.

loss = nce(h, h') + lambda * nce(h, g): h, h' are two dropout views of a sentence, g the sentence with a few marks.

Training inserts token ids: no tokenizer in the loop. That equals inserting into the text and tokenising the result
wherever the tokenizer isolates the marks (`isolated_marks`) and every unit of the sentence is tokenised alone as it is
within the sentence (`unit_ends`). BERT's WordPiece cuts words at white space, CJK characters and punctuation before it
searches for pieces, so under these two conditions a mark never changes its neighbours' tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.trial import AUGMENT
from trainables.data.tokens import Texts, TokenColumn, Tokens, behind_prompt
from trainables.encoders.network import Encoded, Views
from trainables.methods.edacse.config import ALPHABETS, EDACSE, EdacseConfig
from trainables.methods.losses import info_nce
from trainables.methods.method import Batch, Examples, Method, TextTools, sampled, sentence_twice

_UNITS = {
    "character": re.compile(r"[A-Za-z0-9]+|[^\s]"),  # D10: a run of ASCII letters or digits is one unit
    "word": re.compile(r"\S+"),
}
Tokenise = Callable[[Sequence[str]], TokenColumn]


@dataclass(frozen=True, kw_only=True)
class MarkedExamples(Examples):
    """Examples of one column "sentence", and where marks go.

    ends: token offset behind each unit of a sentence, see `unit_ends`; empty where no ids may be inserted.
    marks: (A,) token ids of the alphabet.
    on_text: (n,) row in `prepared` of a sentence whose marks must be inserted as text, else -1.
    prepared: for every epoch those sentences with their marks inserted, tokenised.
    """

    ends: TokenColumn
    marks: NDArray[np.int32]
    on_text: NDArray[np.int64]
    prepared: tuple[TokenColumn, ...]


def _plain(config: EdacseConfig) -> bool:
    return config.max_marks == 0 or config.lambda_ == 0  # nothing but SimCSE: no third encoding


def prepare(texts: Texts, config: EdacseConfig, seed: int, tools: TextTools) -> Examples:
    """Token and unit columns; sentences whose tokens marks would change get their insertions here, one per epoch."""
    sentences = [s or " " for s in texts["sentence"]]
    tokens = tools.tokenise(sentences, "query")
    if _plain(config):
        return Examples({"sentence": tokens})
    marks = isolated_marks(config.alphabet, tools.tokenise)
    if marks is None:
        empty = TokenColumn(np.empty(0, np.int32), np.zeros(len(sentences) + 1, np.int64))
        marks, ends, by_ids = np.empty(0, np.int32), empty, np.zeros(len(sentences), bool)
    else:
        prompt = len(tools.tokenise([" "], "query")[0])
        bare = tools.tokenise(sentences) if prompt else tokens
        ends, by_ids = tools.cached(
            "unit_ends",
            (config.unit, config.alphabet, bare, sentences),  # the tokens stand for the tokenizer
            lambda: unit_ends(sentences, bare, config.unit, config.alphabet, tools.tokenise),
        )
        if prompt:
            alike = [np.array_equal(tokens[i][prompt:], bare[i][: len(tokens[i]) - prompt]) for i in range(len(bare))]
            by_ids = by_ids & np.array(alike)
    needed = sampled(len(sentences), config, seed)
    needed = needed[~by_ids[needed]]
    on_text = np.full(len(sentences), -1, np.int64)
    on_text[needed] = np.arange(len(needed))
    prepared = []
    for epoch in range(config.epochs if len(needed) else 0):
        rng = np.random.default_rng([seed, AUGMENT, epoch])
        inserted = [insert_marks(sentences[i], config.max_marks, config.alphabet, rng, config.unit) for i in needed]
        prepared.append(tools.tokenise(inserted, "query"))
    return MarkedExamples(
        {"sentence": tokens},
        facts={"inserted_as_text_share": float(1 - by_ids.mean())},
        ends=ends,
        marks=marks,
        on_text=on_text,
        prepared=tuple(prepared),
    )


def views(examples: Examples, batch: Batch, config: EdacseConfig, rng: np.random.Generator) -> Views:
    """The sentence twice, and once with new marks (3.3 point 5: new draws at every use)."""
    twice = sentence_twice(examples, batch, config, rng)
    if _plain(config):
        return twice
    assert isinstance(examples, MarkedExamples)
    ends = examples.ends

    def augmented(tokens: Tokens, i: int) -> Tokens:
        if (row := examples.on_text[i]) >= 0:
            return examples.prepared[batch.epoch][int(row)]
        return behind_prompt(
            tokens, examples.prompt, lambda bare: insert_mark_ids(bare, ends[i], examples.marks, config.max_marks, rng)
        )

    return {**twice, "augmented": [augmented(tokens, i) for tokens, i in zip(twice["anchor"], batch, strict=True)]}


def loss(z: Encoded, config: EdacseConfig) -> Tensor:
    """nce(h, h') + lambda * nce(h, g); the negatives of the second term are the other augmented sentences (D13)."""
    between_views = info_nce(z["anchor"], z["positive"], config.temperature)
    if _plain(config):
        return between_views
    return between_views + config.lambda_ * info_nce(z["anchor"], z["augmented"], config.temperature)


# ------------------------------------------------------------ insertion of marks
def unit_spans(text: str, unit: str) -> list[tuple[int, int]]:
    """(start, end) character offsets of the units of a sentence; white space belongs to none.

    Args:
        unit: "character": every character, ASCII letter or digit runs unsplit; "word": split at white space.
    """
    return [m.span() for m in _UNITS[unit].finditer(text)]


def draw_insertions(
    units: int, max_marks: int, marks: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What to insert where: n ~ uniform{1..max_marks} gaps and one mark for each (3.3 points 2-4, D11).

    Args:
        units: U >= 0; gap g in 0..U-1 lies after unit g, the gap at the very start does not exist.
        marks: size of the alphabet; marks are drawn with replacement.
    Returns: gaps (n,), rising, different from each other unless n > U; mark numbers (n,). Both empty if U is 0.
    """
    if units == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    n = int(rng.integers(1, max_marks + 1))
    gaps = rng.choice(units, n, replace=n > units)
    gaps.sort()
    return gaps, rng.integers(0, marks, n)


def insert_marks(text: str, max_marks: int, alphabet: str, rng: np.random.Generator, unit: str) -> str:
    """The sentence with 1..max_marks marks inserted, without blanks (3.3); unchanged if it has no unit.

    Args:
        alphabet: name in `ALPHABETS`.
        unit: "character" or "word" (D10).
    """
    marks = ALPHABETS[alphabet]
    ends = [end for _, end in unit_spans(text, unit)]
    gaps, drawn = draw_insertions(len(ends), max_marks, len(marks), rng)
    pieces, last = [], 0
    for gap, mark in zip(gaps, drawn, strict=True):
        pieces += [text[last : ends[gap]], marks[mark]]
        last = ends[gap]
    return "".join([*pieces, text[last:]])


def insert_mark_ids(
    tokens: Tokens, ends: NDArray[np.int32], marks: NDArray[np.int32], max_marks: int, rng: np.random.Generator
) -> Tokens:
    """`insert_marks` on token ids: for equal draws the same as tokenising its result (see the module's head).

    Args:
        tokens: (L,) ids without special tokens.
        ends: (U,) token offset behind each unit, from `unit_ends`.
        marks: (A,) token id of each mark of the alphabet, from `isolated_marks`.
    Returns: (L + n,) ids, 1 <= n <= max_marks, or the tokens themselves if U is 0.
    """
    gaps, drawn = draw_insertions(len(ends), max_marks, len(marks), rng)
    return np.insert(tokens, ends[gaps], marks[drawn]).astype(np.int32, copy=False)


def isolated_marks(alphabet: str, tokenise: Tokenise) -> NDArray[np.int32] | None:
    """(A,) token ids of the marks if the tokenizer cuts every mark off its neighbours, else None.

    Every mark is tried alone, between letters, digits, CJK characters, beside every other mark and around a blank. A
    byte-pair tokenizer fails (it merges marks, and a word's tokens depend on the blank before it).
    """
    marks = ALPHABETS[alphabet]
    contexts = ["a", "1", "中", "b2", " ", "é", *marks]
    probes = [(left, mark, right) for mark in marks for left in contexts for right in contexts]
    words = sorted({*contexts, *marks})
    known = tokenise([*words, *("".join(p) for p in probes)])
    alone = {word: known[i].tolist() for i, word in enumerate(words)}
    if any(len(alone[mark]) != 1 for mark in marks) or alone[" "]:
        return None
    for i, probe in enumerate(probes):
        if known[len(words) + i].tolist() != [token for part in probe for token in alone[part]]:
            return None
    return np.array([alone[mark][0] for mark in marks], np.int32)


def unit_ends(
    texts: Sequence[str], tokens: TokenColumn, unit: str, alphabet: str, tokenise: Tokenise
) -> tuple[TokenColumn, NDArray[np.bool_]]:
    """Where the units of every sentence end among its tokens, and where marks may be inserted as ids.

    A sentence qualifies if the tokens of its units, each tokenised alone, laid end to end are the sentence's own.
    What fails is rare in Chinese: characters that the tokenizer glues ("é" after a letter, full-width digits).

    Args:
        tokens: `tokenise(texts)`.
    Returns:
        column of (U_i,) token offsets behind each unit; empty for sentences that do not qualify;
        (n,) true where ids may be inserted (sentences without units included: nothing is inserted there).
    """
    split = [[text[a:b] for a, b in unit_spans(text, unit)] for text in texts]
    words = sorted({word for units in split for word in units})
    brackets = set("[]") <= set(ALPHABETS[alphabet])
    alone = tokenise(words)
    if brackets:  # "[" + "MASK" + "]" would become a special token
        framed = tokenise([f"[{word}]" for word in words])
        unframed = np.diff(framed.starts) != np.diff(alone.starts) + 2
    else:
        unframed = np.zeros(len(words), bool)
    number = {word: i for i, word in enumerate(words)}
    lengths = np.diff(alone.starts)

    qualifies = np.zeros(len(texts), bool)
    rows: list[NDArray[np.int64]] = []
    for i, units in enumerate(split):
        index = np.fromiter((number[word] for word in units), np.int64, len(units))
        ends = np.cumsum(lengths[index])
        row, laid = tokens[i], [alone[int(j)] for j in index]
        qualifies[i] = (
            len(row) == (ends[-1] if len(ends) else 0)
            and not unframed[index].any()
            and (not laid or np.array_equal(np.concatenate(laid), row))
        )
        rows.append(ends if qualifies[i] else ends[:0])
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    flat = np.concatenate(rows) if rows else np.empty(0)
    return TokenColumn(flat.astype(np.int32), starts), qualifies


METHOD = Method(
    declaration=EDACSE,
    prepare=prepare,
    views=views,
    loss=loss,
    prepared_from=("max_marks", "lambda_", "alphabet", "unit", "epochs", "sample_size", "seed"),
)
