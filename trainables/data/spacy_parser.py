"""Dependency parses by spaCy: made in parallel processes, with what a pipeline is checked before training starts."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainables.contract.errors import DataError, first_line
from trainables.data.parallel import Progress, cores, in_chunks
from trainables.data.parses import COLUMNS, Parses

USUAL_PIPELINES = {"en": "en_core_web_sm", "zh": "zh_core_web_md"}  # SDA's (methods 4.1)
CHUNK = 1000  # sentences handed to a process at a time
ALONE = 2000  # sentences up to which starting further processes costs more than it saves


class ParserError(DataError):
    """The parser is missing or cannot give what SDA needs; the message says what to do."""


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
    return Parses.joined(in_chunks(_parse_chunk, chunks, [len(c[0]) for c in chunks], processes, progress))


def _parse_chunk(chunk: tuple[list[str], str, str]) -> Parses:
    from spacy.attrs import DEP, HEAD, LEMMA, ORTH, POS, SPACY, TAG

    texts, pipeline, language = chunk
    nlp = load_pipeline(pipeline, language)
    docs = [doc.to_array([ORTH, LEMMA, POS, TAG, DEP, HEAD, SPACY]) for doc in nlp.pipe(text.strip() for text in texts)]
    starts = np.concatenate([[0], np.cumsum([len(doc) for doc in docs])]).astype(np.int64)
    hashes = np.concatenate([*docs, np.zeros((0, 7), np.uint64)])

    def table(columns: list[int]) -> tuple[list[str], NDArray[np.int64]]:
        distinct, numbers = np.unique(hashes[:, columns], return_inverse=True)
        return [nlp.vocab.strings[int(h)] for h in distinct], numbers.reshape(-1, len(columns))

    words, word = table([0, 1])
    labels, label = table([2, 3, 4])
    within = np.arange(len(hashes)) - np.repeat(starts[:-1], np.diff(starts))
    head = within + hashes[:, 5].astype(np.int64)  # spaCy stores the distance to the head
    columns = (word[:, 0], word[:, 1], label[:, 0], label[:, 1], label[:, 2], head, hashes[:, 6])
    arrays = {name: c.astype(dtype) for (name, dtype), c in zip(COLUMNS.items(), columns, strict=True)}
    return Parses(words, labels, **arrays, starts=starts)


def pipeline_identity(pipeline: str, language: str) -> str:
    """Language, name, version and a hash of the training record (two pipelines may share name and version).

    Quick, as nothing is loaded but a small file: a check before training starts. Raises: ParserError.
    """
    path = _pipeline_folder(pipeline, language) / "meta.json"
    record = path.read_bytes()
    meta = json.loads(record)
    if meta["lang"] != language:
        raise ParserError(
            f"parser {pipeline!r}: expected a pipeline for {language!r}, got one for {meta['lang']!r}; "
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
    pipeline_identity(pipeline, language)
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
