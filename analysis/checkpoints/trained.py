"""A trial's trained network, as it is evaluated on test sets. Reads the trial's `best/` folder; no Ray, no MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from analysis.errors import AnalysisError
from trainables.checkpoint import TrialFiles
from trainables.encoder import LoadedEncoder, load_encoder, longest_sentence
from trainables.knobs import build
from trainables.method import TokenColumn
from trainables.methods import METHODS
from trainables.network import SentenceNetwork
from trainables.spec import TrialSpec
from trainables.textcnn import GclsrNetwork
from trainables.token_cache import tokenizer_encoder
from trainables.word_vectors import WordVectors, corpus_words, load_vectors

Network = SentenceNetwork | GclsrNetwork


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network in evaluation mode, with what it was trained from.

    spec: of the trial; config: its hyperparameters, presets included; source: the untouched encoder or word vectors;
    record: trial.json of the checkpoint (spec, evaluation, data revisions).
    """

    spec: TrialSpec
    config: Any
    network: Network
    source: LoadedEncoder | WordVectors
    record: Mapping[str, Any]

    @property
    def language(self) -> str:
        return str(self.spec.data.get("language", "en"))

    def tokenise(self, texts: Sequence[str]) -> TokenColumn:
        """Token ids without special tokens; the whole sentence, however long."""
        if isinstance(self.source, WordVectors):
            tokenizer = self.source.tokenizer(self.language)
            rows = [tokenizer.ids(text) for text in texts]
        else:
            rows = [list(ids) for ids in tokenizer_encoder(self.source.tokenizer)(texts)]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return TokenColumn(np.array([i for row in rows for i in row], dtype=np.int32), starts)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, D) sentence vectors."""
        column = self.tokenise(texts)
        vectors = self.network.embed(column.take(np.arange(len(column))))
        result: NDArray[np.float32] = vectors.float().cpu().numpy()
        return result


def read_spec(folder: str) -> TrialSpec:
    """What a trial was asked to do, by its checkpoint.

    Raises: AnalysisError as `load_trained`.
    """
    return TrialSpec.from_dict(_load_best(folder)[1]["spec"])


def load_trained(folder: str, device: torch.device | None = None, texts: Sequence[str] | None = None) -> Trained:
    """The network of a trial's best evaluation.

    Sentences are cut only where the encoder's position embeddings end: test text is not truncated (methods 7.1), while
    training and dev evaluations keep `max_length` tokens.

    Args:
        folder: the trial's folder or URI.
        texts: all that will be embedded; word vectors of other words are then not read (gclsr). None = all words.
    Raises: AnalysisError if it holds no checkpoint (a failed trial, or one whose checkpoint was not kept);
        EncoderError or DataError if the encoder or vector file it was trained from is not there any more.
    """
    weights, record = _load_best(folder)
    spec = TrialSpec.from_dict(record["spec"])
    method = METHODS[spec.method]
    config = build(method.config, spec.params)
    language = str(spec.data.get("language", "en"))
    source: LoadedEncoder | WordVectors
    if spec.method == "gclsr":
        source = load_vectors(spec.encoder, language, None if texts is None else corpus_words(texts, language))
    else:
        source = load_encoder(spec.encoder, language=language)
    network = method.network(config, source, spec.seed)
    assert isinstance(network, (SentenceNetwork, GclsrNetwork))
    if isinstance(network, SentenceNetwork):
        network.load_weights(weights)
        assert isinstance(source, LoadedEncoder)
        network.max_length = longest_sentence(source.model)
    else:
        network.load_state_dict(weights)
    network.eval()
    return Trained(spec, config, network.to(device) if device else network, source, record)


def _load_best(folder: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        return TrialFiles(folder).load_best()
    except FileNotFoundError as missing:
        raise AnalysisError(f"no checkpoint at {missing}: the trial failed, or its checkpoint was not kept") from None
