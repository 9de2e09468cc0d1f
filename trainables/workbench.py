"""What trials on one encoder and one data set share: the loaded encoder or vectors, the texts, and the workshop.

A warm process makes a bench once; a trial on it costs its training. Tokens, parses and scores lie in the disk cache
too, so a second process (or study) finds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.configs import EncoderConfig, GclsrConfig, RunConfig
from trainables.data import Corpus, Pairs, load_corpus, load_pairs
from trainables.encoder import LoadedEncoder, load_encoder
from trainables.evaluate import PreparedSets, prepare_sets
from trainables.method import Method, TokenColumn, Tokens
from trainables.network import SentenceNetwork
from trainables.parses import Parses, parsed
from trainables.spec import TrialSpec
from trainables.token_cache import DiskCache, TokenCache, content_hash, tokenizer_encoder
from trainables.word_vectors import WordVectors, corpus_words, load_vectors

T = TypeVar("T")
Source = LoadedEncoder | WordVectors
Value = Callable[[Callable[[Sequence[Tokens]], Tensor]], float]  # embed -> the selecting metric


@dataclass(frozen=True, eq=False)
class TextWorkshop:
    """The `Workshop` that methods prepare their examples in."""

    language: str
    parser: str | None
    source: Source
    tokens: TokenCache
    device: torch.device

    def tokenise(self, texts: Sequence[str]) -> TokenColumn:
        return self.tokens.tokenise(texts)

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], T]) -> T:
        return self.tokens.cache.cached(name, parts, make)

    def parse(self, texts: Sequence[str]) -> Parses:
        return parsed(texts, self.parser, self.language, self.cached)

    def embed(self, column: TokenColumn, config: EncoderConfig) -> NDArray[np.float32]:
        assert isinstance(self.source, LoadedEncoder), "only methods on an encoder score with it"
        source = self.source

        def make() -> NDArray[np.float32]:
            network = untrained_network(config, source).to(self.device)
            vectors: NDArray[np.float32] = network.embed(column.take(np.arange(len(column)))).cpu().numpy()
            return vectors

        return self.cached("vectors", [source.fingerprint, config.pooling, config.max_length, column], make)


@dataclass(frozen=True, eq=False)
class Bench:
    """Everything about a trial that its hyperparameters do not change."""

    source: Source
    corpus: Corpus
    dev: tuple[Pairs, ...]
    sets: PreparedSets
    workshop: TextWorkshop
    fingerprint: str  # of encoder or vectors

    @property
    def revisions(self) -> dict[str, str]:
        """What was read, for the record: data set -> revision or hash."""
        return {self.corpus.name: self.corpus.revision, **{f"{p.name}_dev": p.revision for p in self.dev}}

    @property
    def packing_note(self) -> str:
        """Why batches are padded, "" when they are packed."""
        return self.source.packing_note if isinstance(self.source, LoadedEncoder) else ""

    def untrained(self, method: Method, config: RunConfig, seed: int, value: Value) -> float:
        """The selecting metric before training: of the encoder without head, or of a fresh TextCNN."""
        what: list[object] = [self.fingerprint, self.workshop.tokens.fingerprint, method.name == "gclsr"]
        what += [[p.name, p.revision] for p in self.dev]
        if isinstance(config, EncoderConfig):
            assert isinstance(self.source, LoadedEncoder)
            what += [config.pooling, config.max_length]
            network: Any = lambda: untrained_network(config, self.source)  # type: ignore[arg-type]  # noqa: E731
        else:
            assert isinstance(config, GclsrConfig)
            what += [list(config.region_sizes), config.filters, config.max_words, config.attention_at_eval, seed]
            network = lambda: method.network(config, self.source, seed)  # noqa: E731
        return self.workshop.cached("untrained", what, lambda: value(network().to(self.workshop.device).embed))


def untrained_network(config: EncoderConfig, source: LoadedEncoder) -> SentenceNetwork:
    """The encoder as it came, pooled as the configuration says, without a head."""
    plain = replace(config, head="none", head_at="train_only", mlm_weight=0.0, dropout=0.0)
    return SentenceNetwork(plain, source, seed=0)


def bench_key(spec: TrialSpec) -> Hashable:
    """Equal for trials that share a bench."""
    return (spec.method == "gclsr", spec.method, spec.encoder, json.dumps(spec.data, sort_keys=True, default=list))


def make_bench(spec: TrialSpec, needs: str, device: torch.device) -> Bench:
    """Load what a trial needs.

    Args:
        needs: columns of the training data, "sentences" or "triplets".
    Raises: DataError, EncoderError or ValueError in one line for what is missing or of another kind.
    """
    data = spec.data
    language, columns = data["language"], data.get("columns")
    corpus = load_corpus(data["train"], language, needs, columns)
    dev = tuple(load_pairs(name, "dev", language, columns) for name in data["dev"])
    cache = DiskCache()
    source: Source
    if spec.method == "gclsr":
        texts = [t for column in corpus.columns.values() for t in column]
        texts += [t for pairs in dev for side in (pairs.first, pairs.second) for t in side]
        source = load_vectors(spec.encoder, language, corpus_words(texts, language))
        tokenizer = source.tokenizer(language)
        fingerprint = content_hash([list(source.words), source.matrix])
        tokens = TokenCache(lambda some: [tokenizer.ids(t) for t in some], fingerprint, cache)
    else:
        source = load_encoder(spec.encoder, language=language)
        fingerprint = source.fingerprint
        tokens = TokenCache(tokenizer_encoder(source.tokenizer), source.tokenizer_fingerprint, cache)
    workshop = TextWorkshop(language, data.get("parser"), source, tokens, device)
    return Bench(source, corpus, dev, prepare_sets(dev, workshop.tokenise), workshop, fingerprint)
