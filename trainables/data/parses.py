"""Dependency parses of a corpus as flat arrays, by the parser that its study names, and the processes that make them.

A *parser* is an installed spaCy pipeline (`en_core_web_sm`), a folder that holds one, or `builtin` (the annotation that
comes with the builtin corpus).
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError, first_line
from trainables.contract.limits import share_of_cores
from trainables.contract.trial import phase
from trainables.data.builtin import FOLDER, corpus_file


def numbers() -> defaultdict[str, int]:
    """Numbers strings in the order of their first use."""
    return defaultdict(itertools.count().__next__)


class Token(NamedTuple):
    """One token of a parsed sentence, in spaCy's words. A tuple because millions of them are made.

    Attributes:
        text: the token as written; lemma: its base form (may be empty).
        pos: coarse part of speech ("VERB"); tag: the fine one ("VBD").
        dep: dependency label ("nsubj", "ROOT").
        head: number of the head token in the sentence; the root's is its own.
        space: a blank follows it in the text (Chinese: between the words of a Latin name).
    """

    text: str
    lemma: str
    pos: str
    tag: str
    dep: str
    head: int
    space: bool = False


COLUMNS: dict[str, type[np.generic]] = {
    "text": np.uint32, "lemma": np.uint32, "pos": np.uint16, "tag": np.uint16, "dep": np.uint16, "head": np.uint16,
    "space": np.bool_,
}  # fmt: skip


@dataclass(frozen=True)
class Parses:
    """The parses of n sentences with T tokens in all; sentence i is tokens starts[i]:starts[i + 1].

    words, labels: the distinct strings; text, lemma: (T,) uint32 numbers into `words`; pos, tag, dep: (T,) uint16
    numbers into `labels`; head: (T,) uint16 position in the sentence; space: (T,) bool; starts: (n + 1,) int64.
    """

    words: Sequence[str]
    labels: Sequence[str]
    text: NDArray[np.uint32]
    lemma: NDArray[np.uint32]
    pos: NDArray[np.uint16]
    tag: NDArray[np.uint16]
    dep: NDArray[np.uint16]
    head: NDArray[np.uint16]
    space: NDArray[np.bool_]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> list[Token]:
        return next(self.part(i, i + 1).sentences())

    def part(self, start: int, stop: int) -> Parses:
        """Sentences start:stop, with the words in them alone: parts travel to other processes."""
        a, b = int(self.starts[start]), int(self.starts[stop])
        columns = {name: getattr(self, name)[a:b] for name in COLUMNS}
        used, numbers = np.unique([columns["text"], columns["lemma"]], return_inverse=True)
        columns |= zip(("text", "lemma"), numbers.astype(np.uint32), strict=True)
        return Parses([self.words[i] for i in used], self.labels, **columns, starts=self.starts[start : stop + 1] - a)

    def sentences(self) -> Iterator[list[Token]]:
        """The tokens of every sentence in turn."""
        words, labels = self.words, self.labels
        tokens = [
            Token(words[text], words[lemma], labels[pos], labels[tag], labels[dep], head, space)
            for text, lemma, pos, tag, dep, head, space in zip(
                *(getattr(self, name).tolist() for name in COLUMNS), strict=True
            )
        ]
        for a, b in itertools.pairwise(self.starts.tolist()):
            yield tokens[a:b]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Equal for equal parses; what is derived from them is cached under it."""
        digest = hashlib.blake2b(repr([*self.words, self.labels]).encode(), digest_size=16)
        for name in (*COLUMNS, "starts"):
            digest.update(np.ascontiguousarray(getattr(self, name)).data)
        return digest.hexdigest()

    @staticmethod
    def from_tokens(sentences: Iterable[Sequence[Token]]) -> Parses:
        """Parses given as tokens."""
        words, labels = numbers(), numbers()
        columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
        starts = [0]
        for sentence in sentences:
            for token in sentence:
                columns["text"].append(words[token.text])
                columns["lemma"].append(words[token.lemma])
                for name in ("pos", "tag", "dep"):
                    columns[name].append(labels[getattr(token, name)])
                columns["head"].append(token.head)
                columns["space"].append(token.space)
            starts.append(len(columns["text"]))
        return Parses(
            list(words),
            list(labels),
            **{name: np.array(column, COLUMNS[name]) for name, column in columns.items()},
            starts=np.array(starts, np.int64),
        )

    @staticmethod
    def joined(parts: Sequence[Parses]) -> Parses:
        """The sentences of all parts, under one table of words and one of labels."""
        words, labels = numbers(), numbers()
        columns: dict[str, list[NDArray[Any]]] = {name: [np.zeros(0, dtype)] for name, dtype in COLUMNS.items()}
        starts = [np.zeros(1, np.int64)]
        for part in parts:
            word = np.array([words[w] for w in part.words], np.uint32)
            label = np.array([labels[w] for w in part.labels], np.uint16)
            for name in COLUMNS:
                column = getattr(part, name)
                if name not in ("head", "space"):
                    column = (word if name in ("text", "lemma") else label)[column]
                columns[name].append(column)
            starts.append(part.starts[1:] + starts[-1][-1])
        arrays = {name: np.concatenate(column) for name, column in columns.items()}
        return Parses(list(words), list(labels), **arrays, starts=np.concatenate(starts))


BUILTIN = "builtin"
USUAL_PIPELINES = {"en": "en_core_web_sm", "zh": "zh_core_web_md"}  # SDA's (methods 4.1)
FORMAT = 3  # of the stored parses; part of every cache key
CHUNK = 1000  # sentences handed to a process at a time
ALONE = 2000  # sentences up to which starting further processes costs more than it saves

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R")
Cached = Callable[[str, Sequence[object], Callable[[], Any]], Any]  # TextTools.cached


class ParserError(DataError):
    """The parser is missing or cannot give what SDA needs; the message states what to do."""


def parsed(texts: Sequence[str], parser: str | None, language: str, cached: Cached) -> Parses:
    """The parses of `texts`, from the cache or made now (see `parse_texts`).

    Args:
        parser: pipeline name, folder or "builtin"; None = the paper's for the language.
        language: "en" or "zh".
        cached: `TextTools.cached`; the key is the texts and the parser's name, version and training record.
    Raises: ParserError.
    """
    parser = parser or USUAL_PIPELINES[language]
    if parser == BUILTIN:
        try:
            return builtin_parses(tuple(texts), language)
        except KeyError as error:
            raise ParserError(
                f"parser {BUILTIN!r}: has only the sentences of the builtin corpus, got {error.args[0][:60]!r}; "
                "name a spaCy pipeline in data.parser"
            ) from None

    key = (tuple(texts), parser_identity(parser, language), FORMAT)
    found: Parses = cached("parses", key, lambda: parse_texts(texts, parser, language))
    return found


def parse_texts(texts: Sequence[str], pipeline: str, language: str, processes: int | None = None) -> Parses:
    """Parses sentences (stripped of outer white space, as SDA's script does) with a spaCy pipeline.

    Args:
        pipeline: installed package or folder.
        processes: None = one per core of this worker's share, few sentences in this process; each loads the pipeline.
    Raises: ParserError if the pipeline is missing, of another language or without a dependency parser.
    """
    load_pipeline(pipeline, language)  # its errors belong to this process; a single process needs it anyway
    if processes is None:
        processes = 1 if len(texts) <= ALONE else share_of_cores()
    chunks = [(list(texts[i : i + CHUNK]), pipeline, language) for i in range(0, len(texts), CHUNK)]
    return Parses.joined(in_chunks(_parse_chunk, chunks, processes, f"Parsing with {pipeline}"))


def _parse_chunk(chunk: tuple[list[str], str, str]) -> Parses:
    texts, pipeline, language = chunk
    docs = load_pipeline(pipeline, language).pipe(text.strip() for text in texts)
    return Parses.from_tokens(
        [Token(t.text, t.lemma_, t.pos_, t.tag_, t.dep_, t.head.i, bool(t.whitespace_)) for t in doc] for doc in docs
    )


def parser_identity(parser: str | None, language: str) -> str:
    """Language, name, version and a hash of the training record (two pipelines may share name and version).

    Quick, as nothing is loaded but a small file: a check before training starts. Raises: ParserError.
    """
    parser = parser or USUAL_PIPELINES[language]
    if parser == BUILTIN:
        return BUILTIN
    record = (_pipeline_folder(parser, language) / "meta.json").read_bytes()
    meta = json.loads(record)
    if meta["lang"] != language:
        raise ParserError(
            f"parser {parser!r}: expected a pipeline for {language!r}, got one for {meta['lang']!r}; "
            f"the usual one is {USUAL_PIPELINES[language]}"
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
    usual = USUAL_PIPELINES.get(language, USUAL_PIPELINES["en"])
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
        raise ParserError(f"parser {pipeline!r} cannot be loaded: {first_line(error)}") from error
    if "parser" not in nlp.pipe_names:
        raise ParserError(
            f"parser {pipeline!r}: expected a pipeline with a dependency parser, got only "
            f"{', '.join(nlp.pipe_names) or 'a tokenizer'}"
        )
    return nlp


def in_chunks(work: Callable[[A], R], chunks: Sequence[A], processes: int, title: str) -> list[R]:
    """`[work(c) for c in chunks]`, in that order, on up to `processes` processes; progress is reported under `title`.

    Not by spaCy's `nlp.pipe(n_process=)`: it forks, and its parent takes longer to unpack a parse than a process takes
    to make it.

    Args:
        work: a module-level function (it travels to the processes by name).
        chunks: its inputs; the first item of each is its sentences.
        processes: 1 = in this process. More are started afresh ("spawn"): a copy of a process that already runs torch's
            threads may hang, and a trial's process does run them.
    """
    total, done, found = sum(len(chunk[0]) for chunk in chunks), 0, list[R]()
    with contextlib.ExitStack() as stack:
        run: Callable[..., Iterator[R]] = map
        if (processes := min(processes, len(chunks))) > 1:
            spawned = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
            run = stack.enter_context(spawned).map
        for chunk, result in zip(chunks, run(work, chunks), strict=True):
            found.append(result)
            done += len(chunk[0])
            phase(title, done, total)
    return found


@functools.cache
def _parses(language: str) -> tuple[Parses, dict[str, int]]:
    """The parses of the training sentences, and where each sentence is."""
    with np.load(FOLDER / f"{language}_parses.npz") as stored:
        columns = {name: stored[name] for name in (*COLUMNS, "starts")}
        parses = Parses(stored["words"].tolist(), stored["labels"].tolist(), **columns)
    sentences = gzip.decompress(corpus_file(language, "sentences").read_bytes()).decode().splitlines()
    return parses, {sentence: i for i, sentence in enumerate(sentences)}


def builtin_parses(texts: tuple[str, ...], language: str) -> Parses:
    """The dependency parses of builtin training sentences, in the labels of spaCy's models of the language.

    Raises: KeyError for another sentence.
    """
    parses, at = _parses(language)
    if texts == tuple(at):  # one object for all trials of a process: its fingerprint is computed once
        return parses
    return Parses.from_tokens(parses[at[text]] for text in texts)
