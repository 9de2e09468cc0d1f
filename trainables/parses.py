"""Dependency parses of a corpus, for SDA: made once by spaCy in parallel processes, kept as flat arrays.

A *parser* is named by an installed spaCy pipeline (`en_core_web_sm`), a folder that holds one, or `builtin` (the
annotation that comes with the generated corpus).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainables.chunks import Progress, cores, in_chunks, progress_shown
from trainables.sources import DataError

DEFAULT_PARSERS = {"en": "en_core_web_sm", "zh": "zh_core_web_md"}  # SDA's (methods 4.1)
BUILTIN = "builtin"
CHUNK = 1000  # sentences handed to a process at a time
ALONE = 2000  # sentences up to which starting further processes costs more than it saves
FORMAT = 1  # of the stored arrays; part of every cache key

Cached = Callable[[str, Sequence[object], Callable[[], Any]], Any]  # Workshop.cached
Arrays = dict[str, NDArray[Any]]


class ParserError(DataError):
    """The parser is missing or cannot give what SDA needs; the message says what to do."""


class Token(NamedTuple):
    """One token of a parsed sentence, in spaCy's words. A tuple because millions of them are made.

    Attributes:
        text: the token as written; lemma: its base form (may be empty).
        pos: coarse part of speech ("VERB"); tag: the fine one ("VBD").
        dep: dependency label ("nsubj", "ROOT").
        head: number of the head token in the sentence; the root's is its own.
    """

    text: str
    lemma: str
    pos: str
    tag: str
    dep: str
    head: int


@dataclass(frozen=True)
class Parses:
    """The parses of n sentences with T tokens in all; sentence i is tokens starts[i]:starts[i + 1].

    words, labels: the distinct strings; text, lemma: (T,) uint32 numbers into `words`; pos, tag, dep: (T,) uint16
    numbers into `labels`; head: (T,) uint16 position in the sentence; starts: (n + 1,) int64.
    """

    words: Sequence[str]
    labels: Sequence[str]
    text: NDArray[np.uint32]
    lemma: NDArray[np.uint32]
    pos: NDArray[np.uint16]
    tag: NDArray[np.uint16]
    dep: NDArray[np.uint16]
    head: NDArray[np.uint16]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> list[Token]:
        return next(self.part(i, i + 1).sentences())

    def part(self, start: int, stop: int) -> Parses:
        """Sentences start:stop, without copying the arrays."""
        a, b = int(self.starts[start]), int(self.starts[stop])
        columns = {name: getattr(self, name)[a:b] for name in _COLUMNS}
        return Parses(self.words, self.labels, **columns, starts=self.starts[start : stop + 1] - a)

    def sentences(self) -> Iterator[list[Token]]:
        """The tokens of every sentence in turn."""
        words, labels = self.words, self.labels
        tokens = [
            Token(words[text], words[lemma], labels[pos], labels[tag], labels[dep], head)
            for text, lemma, pos, tag, dep, head in zip(
                *(getattr(self, name).tolist() for name in _COLUMNS), strict=True
            )
        ]
        starts = self.starts.tolist()
        for a, b in itertools.pairwise(starts):
            yield tokens[a:b]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal parses; what is derived from them is cached under it."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in self.to_arrays().items():
            digest.update(f"{name} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def to_arrays(self) -> Arrays:
        """Plain arrays for a cache; `from_arrays` is the inverse."""
        return {
            **{name: getattr(self, name) for name in (*_COLUMNS, "starts")},
            **pack_texts(self.words, "words"),
            **pack_texts(self.labels, "labels"),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Parses:
        return Parses(
            words=unpack_texts(arrays, "words"),
            labels=unpack_texts(arrays, "labels"),
            **{name: arrays[name] for name in (*_COLUMNS, "starts")},
        )

    @staticmethod
    def from_tokens(sentences: Iterable[Sequence[Token]]) -> Parses:
        """Parses given as tokens.

        Raises: ValueError if a head does not name a token of its sentence.
        """
        words, labels = _Numbers(), _Numbers()
        columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        starts = [0]
        for number, sentence in enumerate(sentences):
            for token in sentence:
                if not 0 <= token.head < len(sentence):
                    raise ValueError(
                        f"sentence {number}: expected the head of {token.text!r} in 0..{len(sentence) - 1}, "
                        f"got {token.head}"
                    )
                columns["text"].append(words[token.text])
                columns["lemma"].append(words[token.lemma])
                for name in ("pos", "tag", "dep"):
                    columns[name].append(labels[getattr(token, name)])
                columns["head"].append(token.head)
            starts.append(len(columns["text"]))
        return Parses(
            list(words),
            list(labels),
            **{name: np.array(column, _COLUMNS[name]) for name, column in columns.items()},
            starts=np.array(starts, np.int64),
        )


_COLUMNS = {
    "text": np.uint32, "lemma": np.uint32, "pos": np.uint16, "tag": np.uint16, "dep": np.uint16, "head": np.uint16,
}  # fmt: skip


class _Numbers(dict[str, int]):
    """Numbers strings in the order of their first use."""

    def __missing__(self, key: str) -> int:
        self[key] = number = len(self)
        return number


def pack_texts(texts: Sequence[str], name: str) -> Arrays:
    """Texts as two arrays, `<name>_utf8` (all of them end to end) and `<name>_ends` (in characters): loads at once."""
    ends = np.cumsum([len(t) for t in texts], dtype=np.int64)
    return {
        f"{name}_utf8": np.frombuffer("".join(texts).encode("utf-8", "surrogatepass"), np.uint8),
        f"{name}_ends": ends,
    }


def unpack_texts(arrays: Mapping[str, NDArray[Any]], name: str) -> list[str]:
    """The inverse of `pack_texts`."""
    joined = arrays[f"{name}_utf8"].tobytes().decode("utf-8", "surrogatepass")
    ends = arrays[f"{name}_ends"].tolist()
    return [joined[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


def hash_texts(texts: Sequence[str]) -> str:
    """Equal for equal lists of texts."""
    digest = hashlib.blake2b(digest_size=16)
    packed = pack_texts(texts, "texts")
    for array in packed.values():
        digest.update(array.data)
    return digest.hexdigest()


def parsed(
    texts: Sequence[str], parser: str | None, language: str, cached: Cached, processes: int | None = None
) -> Parses:
    """The parses of `texts`, from the cache or made now with visible progress (see `parse_texts`).

    Args:
        parser: pipeline name, folder or "builtin"; None = the paper's for the language.
        language: "en" or "zh".
        cached: `Workshop.cached`; the key is the texts' hash and the parser's name, version and training record.
    Raises: ParserError.
    """
    parser = parser or DEFAULT_PARSERS[language]
    if parser == BUILTIN:  # not on disk: it follows the generator's code, which no key can name
        return builtin_parses(tuple(texts), language)

    def make() -> Arrays:
        with progress_shown(f"Parsing with {parser}") as progress:
            return parse_texts(texts, parser, language, processes, progress).to_arrays()

    key = (hash_texts(texts), parser_identity(parser, language), FORMAT)
    return Parses.from_arrays(cached("parses", key, make))


@functools.lru_cache(maxsize=2)  # every trial of a warm process asks for the same
def builtin_parses(texts: tuple[str, ...], language: str) -> Parses:
    """The annotation of generated sentences. Raises: ValueError for a sentence that was not generated."""
    from trainables.builtin import parse

    return Parses.from_tokens(parse(text, language) for text in texts)


def parse_texts(
    texts: Sequence[str],
    pipeline: str,
    language: str,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Parses:
    """Parses sentences (stripped of outer white space, as SDA's script does) with a spaCy pipeline.

    Args:
        pipeline: installed package or folder.
        processes: None = one per core, few sentences alone in this process; each loads the pipeline for itself.
        progress: called with (sentences done, all sentences).
    Raises: ParserError if the pipeline is missing, of another language or without a dependency parser.
    """
    load_pipeline(pipeline, language)  # its errors belong to this process; a single process needs it anyway
    if processes is None:
        processes = 1 if len(texts) <= ALONE else cores()
    chunks = [(list(texts[i : i + CHUNK]), pipeline, language) for i in range(0, len(texts), CHUNK)]
    return _joined(in_chunks(_parse_chunk, chunks, [len(c[0]) for c in chunks], processes, progress))


def _parse_chunk(chunk: tuple[list[str], str, str]) -> Parses:
    from spacy.attrs import DEP, HEAD, LEMMA, ORTH, POS, TAG

    texts, pipeline, language = chunk
    nlp = load_pipeline(pipeline, language)
    docs = [doc.to_array([ORTH, LEMMA, POS, TAG, DEP, HEAD]) for doc in nlp.pipe(text.strip() for text in texts)]
    starts = np.concatenate([[0], np.cumsum([len(doc) for doc in docs])]).astype(np.int64)
    hashes = np.concatenate([*docs, np.zeros((0, 6), np.uint64)])

    def table(columns: list[int]) -> tuple[list[str], NDArray[np.int64]]:
        distinct, numbers = np.unique(hashes[:, columns], return_inverse=True)
        return [nlp.vocab.strings[int(h)] for h in distinct], numbers.reshape(-1, len(columns))

    words, word = table([0, 1])
    labels, label = table([2, 3, 4])
    within = np.arange(len(hashes)) - np.repeat(starts[:-1], np.diff(starts))
    head = within + hashes[:, 5].astype(np.int64)  # spaCy stores the distance to the head
    columns = (word[:, 0], word[:, 1], label[:, 0], label[:, 1], label[:, 2], head)
    arrays = {name: c.astype(dtype) for (name, dtype), c in zip(_COLUMNS.items(), columns, strict=True)}
    return Parses(words, labels, **arrays, starts=starts)


def _joined(parts: Sequence[Parses]) -> Parses:
    """The sentences of all parts, under one table of words and one of labels."""
    words, labels = _Numbers(), _Numbers()
    columns: dict[str, list[NDArray[Any]]] = {name: [np.zeros(0, dtype)] for name, dtype in _COLUMNS.items()}
    starts = [np.zeros(1, np.int64)]
    for part in parts:
        word = np.array([words[w] for w in part.words], np.uint32)
        label = np.array([labels[w] for w in part.labels], np.uint16)
        for name in _COLUMNS:
            column = getattr(part, name)
            if name != "head":
                column = (word if name in ("text", "lemma") else label)[column]
            columns[name].append(column)
        starts.append(part.starts[1:] + starts[-1][-1])
    arrays = {name: np.concatenate(column) for name, column in columns.items()}
    return Parses(list(words), list(labels), **arrays, starts=np.concatenate(starts))


def parser_identity(parser: str | None, language: str) -> str:
    """Language, name, version and a hash of the training record (two pipelines may share name and version).

    Quick, as nothing is loaded but a small file: a check before training starts. Raises: ParserError.
    """
    parser = parser or DEFAULT_PARSERS[language]
    if parser == BUILTIN:
        return BUILTIN
    path = _pipeline_folder(parser, language) / "meta.json"
    record = path.read_bytes()
    meta = json.loads(record)
    if meta["lang"] != language:
        raise ParserError(
            f"parser {parser!r}: expected a pipeline for {language!r}, got one for {meta['lang']!r}; "
            f"the usual one is {DEFAULT_PARSERS[language]}"
        )
    return f"{meta['lang']}_{meta['name']}-{meta['version']}-{hashlib.sha256(record).hexdigest()[:12]}"


def _pipeline_folder(parser: str, language: str) -> Path:
    try:
        from spacy import util
    except ImportError as error:
        raise ParserError(
            "SDA's dependency parses need spaCy, which is not installed: `pip install 'contrastive-search[sda]'`"
        ) from error
    if util.is_package(parser):
        return Path(util.get_package_path(parser))
    if (Path(parser) / "meta.json").is_file():
        return Path(parser)
    usual = DEFAULT_PARSERS.get(language, DEFAULT_PARSERS["en"])
    looks_like_folder = "/" in parser or Path(parser).is_dir()
    raise ParserError(
        f"parser {parser!r}: "
        + ("no spaCy pipeline in this folder (no meta.json)" if looks_like_folder else "spaCy pipeline not installed")
        + f"; install one with `python -m spacy download {usual if looks_like_folder else parser}`, "
        "or name a folder that holds one"
    )


@functools.lru_cache(maxsize=2)
def load_pipeline(pipeline: str, language: str) -> Any:
    """The spaCy pipeline without what SDA does not use. Raises: ParserError."""
    parser_identity(pipeline, language)
    import spacy

    try:
        nlp = spacy.load(pipeline, exclude=["ner"])
    except (OSError, ImportError, ValueError) as error:
        raise ParserError(f"parser {pipeline!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    if "parser" not in nlp.pipe_names:
        raise ParserError(
            f"parser {pipeline!r}: expected a pipeline with a dependency parser, got only "
            f"{', '.join(nlp.pipe_names) or 'a tokenizer'}"
        )
    return nlp
