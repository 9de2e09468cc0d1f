"""Word vectors from files, and splitting sentences into words (GCLSR 6.1, D40).

A known word's id is its row in the vectors. An unknown word's id is negative and a hash of the word; its random vector
depends only on that id and the seed of the run.
"""

from __future__ import annotations

import gzip
import io
import itertools
import math
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError

BUILTIN = "builtin:vectors"
PLACEHOLDER = "sickeningly"  # the word of an empty sentence in the public code
LONGEST_CHINESE_WORD = 6
_BLOCK = 1 << 20
_HEADER = re.compile(rb"\s*(\d+)\s+(\d+)\s*\n")
_CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+|[a-z]+")


@dataclass(frozen=True)
class WordVectors:
    """words: (V,) distinct; matrix: (V, D) float32, row i is the vector of words[i]."""

    words: tuple[str, ...]
    matrix: NDArray[np.float32]

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])

    def tokenizer(self, language: str) -> WordTokenizer:
        """A tokenizer whose ids are rows of this matrix."""
        return WordTokenizer(self.words, language)


class WordTokenizer:
    """Sentences to word ids: 0..V-1 known words, below 0 unknown ones.

    Args:
        vocabulary: known words; a word's id is its index.
        language: "en": cleaned as in 6.1 and split at blanks. "zh" (not in the paper): runs of Chinese characters are
            split by forward maximum matching against the vocabulary, a character without a match is a word; runs of
            a-z are words; everything else is dropped.
    """

    def __init__(self, vocabulary: Sequence[str], language: str = "en") -> None:
        _require_language(language)
        self.language = language
        self.number = {word: i for i, word in enumerate(vocabulary)}
        self._longest = min(LONGEST_CHINESE_WORD, max(map(len, vocabulary), default=1))

    def words(self, text: str) -> list[str]:
        """The words of a sentence; an empty one has the placeholder word (6.1)."""
        if self.language == "en":
            return english_words(text) or [PLACEHOLDER]
        found: list[str] = []
        for run in _CHINESE.findall(text.lower()):
            found += [run] if run.isascii() else self._longest_matches(run)
        return found or [PLACEHOLDER]

    def ids(self, text: str) -> list[int]:
        """Word ids of a sentence, at least one, in [-2^31, V)."""
        return [self.number[word] if word in self.number else unknown_id(word) for word in self.words(text)]

    def _longest_matches(self, run: str) -> Iterator[str]:
        start = 0
        while start < len(run):
            lengths = range(min(self._longest, len(run) - start), 0, -1)
            length = next((n for n in lengths if run[start : start + n] in self.number), 1)
            yield run[start : start + length]
            start += length


def english_words(text: str) -> list[str]:
    """Cleaning of 6.1: apostrophes deleted, lower-cased, everything outside a-z a blank, split."""
    return re.sub("[^a-z]", " ", text.replace("'", "").replace("’", "").lower()).split()


def unknown_id(word: str) -> int:
    """The id of a word without a vector, in [-2^31, -1]; the same on every machine."""
    return -1 - (zlib.crc32(word.encode()) >> 1)


def unknown_vectors(ids: NDArray[np.integer], seed: int, dim: int) -> NDArray[np.float32]:
    """Random vectors of unknown words, U(-b, b) per component, b = sqrt(3 / D) (6.1, D40).

    Component j of word w is a hash (splitmix64) of (w, j, seed), so a word has the same vector during the whole run.

    Args: ids: (n,) from `unknown_id`.
    Returns: (n, dim).
    """
    with np.errstate(over="ignore"):  # the hash wraps
        x = ids.astype(np.int64).astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
        x = _mixed(x + np.uint64(seed & 0xFFFFFFFF)) + np.arange(dim, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = _mixed(x)
    unit = (x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)  # 24 bits: exact in float32
    vectors: NDArray[np.float32] = (2 * unit - 1) * np.float32(math.sqrt(3 / dim))
    return vectors


def _require_language(language: str) -> None:
    if language not in ("en", "zh"):
        raise ValueError(f"language: expected en or zh, got {language!r}")


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def corpus_words(texts: Iterable[str], language: str) -> set[str]:
    """Every word that a tokenizer can look up for these texts: the words that `load_vectors` must read.

    Chinese: all runs of up to 6 characters, because the vocabulary decides which of them are words.
    """
    _require_language(language)
    found = {PLACEHOLDER}
    for text in texts:
        if language == "en":
            found.update(english_words(text))
            continue
        for run in _CHINESE.findall(text.lower()):
            if run.isascii():
                found.add(run)
                continue
            sizes = range(1, LONGEST_CHINESE_WORD + 1)
            found.update(run[i : i + n] for i in range(len(run)) for n in sizes if i + n <= len(run))
    return found


def load_vectors(source: str, language: str, wanted: Collection[str] | None = None) -> WordVectors:
    """Vectors of a file (`~` = home; see `read_vectors`) or of the builtin vocabulary (`builtin:vectors`)."""
    if source != BUILTIN:
        return read_vectors(Path(source).expanduser(), wanted)
    from trainables.data.builtin import word_vectors

    words, matrix = word_vectors(language)
    return WordVectors(tuple(words), matrix)


def read_vectors(path: Path, wanted: Collection[str] | None = None) -> WordVectors:
    """Vectors of a word2vec (binary or text) or GloVe (text) file, gzipped or not, recognised by content.

    Args:
        wanted: read the vectors of these words only (a set: every word of the file is looked up); None = all.
            The first of several vectors of a word counts.
    Raises:
        DataError for a missing file, one of another kind, rows of another dimension than the first one or the header,
            another number of words than in the header, numbers that are not finite, or no wanted word in the file.
    """
    words: dict[str, None] = {}
    rows: list[NDArray[np.float32]] = []
    seen = 0
    try:
        with _entries(path) as (layout, entries):
            for word, numbers in entries:
                seen += 1
                if word not in words and (wanted is None or word in wanted):
                    words[word] = None
                    rows.append(_parsed(numbers, layout, path, word))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file is damaged or cut off: {error}") from error
    if layout.count not in (None, seen):
        raise DataError(f"{path}: expected {layout.count} words as in its first line, got {seen}")
    if not rows:
        asked = "" if wanted is None else f", and none of the {len(wanted):,} wanted ones"
        raise DataError(f"{path}: expected vectors of the corpus's words, got {seen:,} words{asked}")
    matrix = np.stack(rows)
    if not np.isfinite(matrix).all():
        raise DataError(f"{path}: expected finite numbers, got nan or infinity: a damaged file or a wrong dimension")
    return WordVectors(tuple(words), matrix)


def check_vectors(path: Path, rows: int = 1000) -> None:
    """Check the first `rows` rows of a vector file before a search starts.

    Raises: DataError as `read_vectors`.
    """
    with _entries(path) as (layout, entries):
        for word, numbers in itertools.islice(entries, rows):
            if not np.isfinite(_parsed(numbers, layout, path, word)).all():
                raise DataError(f"{path}: expected finite numbers behind {word!r}: a damaged file or a wrong dimension")


@dataclass(frozen=True)
class _Layout:
    """binary: 4-byte floats, else text; header: bytes of the first line if it is "count dim"; count: None = unknown."""

    binary: bool
    dim: int
    header: int = 0
    count: int | None = None


def _layout(head: bytes, path: Path) -> _Layout:
    """The layout of a file that begins with `head`: word2vec binary or text by its header, else GloVe."""
    header = _HEADER.match(head)
    count, dim, size = (int(header[1]), int(header[2]), header.end()) if header else (None, 0, 0)
    first = head[size:].split(b"\n", 1)[0].rstrip()
    as_text = first.split(b" ")
    if header and dim and not _numbers(as_text[-dim:], dim):
        return _Layout(True, dim, size, count)
    dim = dim or len(as_text) - 1
    if dim < 1 or not _numbers(as_text[-dim:], dim):
        raise DataError(f"{path}: expected word vectors (word2vec binary or text, GloVe text; also gzipped)")
    return _Layout(False, dim, size, count)


def _numbers(fields: Sequence[bytes], count: int) -> bool:
    try:
        return len([float(field) for field in fields]) == count
    except ValueError:
        return False


@contextmanager
def _entries(path: Path) -> Iterator[tuple[_Layout, Iterator[tuple[str, bytes]]]]:
    """The layout of a file, read through gzip if its first bytes are gzip's, and its words with their numbers."""
    if not path.is_file():
        raise DataError(f"{path}: expected a file of word vectors or {BUILTIN}, found no such file")
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = cast(IO[bytes], io.BufferedReader(gzip.GzipFile(fileobj=raw), _BLOCK)) if zipped else raw
        layout = _layout(file.read(_BLOCK), path)
        file.seek(0)
        yield layout, (_binary_rows if layout.binary else _text_rows)(file, layout, path)


def _binary_rows(file: IO[bytes], layout: _Layout, path: Path) -> Iterator[tuple[str, bytes]]:
    """Word, one blank, D little-endian float32, perhaps a line feed; read in blocks, since there are millions."""
    size = 4 * layout.dim
    block, at = file.read(_BLOCK), layout.header
    for n in range(layout.count or 0):
        while (blank := block.find(b" ", at)) < 0 or blank + 1 + size > len(block):
            if not (more := file.read(_BLOCK)):
                expected = f"{layout.count} words of {layout.dim} numbers as in its first line"
                raise DataError(f"{path}: expected {expected}, got the end of the file in word {n + 1}")
            block, at = block[at:] + more, 0
        yield block[at:blank].lstrip(b"\n").decode("utf-8", "replace"), block[blank + 1 : blank + 1 + size]
        at = blank + 1 + size
    if block[at:].strip() or file.read(1):
        expected = f"{layout.count} words of {layout.dim} numbers as in its first line"
        raise DataError(f"{path}: expected {expected}, got more data behind them: a wrong dimension?")


def _text_rows(file: IO[bytes], layout: _Layout, path: Path) -> Iterator[tuple[str, bytes]]:
    """Lines of a word and D numbers; the word may contain blanks (GloVe 840B), but not end in a number."""
    file.read(layout.header)
    for n, line in enumerate(file, 2 if layout.header else 1):
        fields = line.rstrip().rsplit(b" ", layout.dim)
        last = fields[0].rpartition(b" ")[2]
        if len(fields) != layout.dim + 1 or (last != fields[0] and _numbers([last], 1)):
            got = len(line.split()) - 1
            raise DataError(f"{path}:{n}: expected a word and {layout.dim} numbers as before, got {got} numbers")
        yield fields[0].decode("utf-8", "replace"), b" ".join(fields[1:])


def _parsed(numbers: bytes, layout: _Layout, path: Path, word: str) -> NDArray[np.float32]:
    if layout.binary:
        return np.frombuffer(numbers, "<f4").astype(np.float32)
    try:
        return np.array(numbers.split(b" "), dtype="S").astype(np.float32)
    except ValueError:
        raise DataError(f"{path}: expected {layout.dim} numbers behind the word {word!r}, got other text") from None
