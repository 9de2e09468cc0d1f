"""A trial's trained network, as it is evaluated on test sets. Reads the trial's `best/` folder; no Ray, no MLflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from analysis.checkpoints.choice import read_record
from analysis.errors import AnalysisError
from trainables.contract.config import build
from trainables.contract.errors import PluginError
from trainables.contract.formats import NewerFormatError
from trainables.contract.origin import JOURNAL, at_origin
from trainables.contract.registry import use_plugins
from trainables.contract.trial import TrialSpec, study_folder
from trainables.data.tokens import TokenColumn
from trainables.encoders.load import EncoderSource, change, is_part, load_source, token_ids
from trainables.encoders.word_vectors import WordVectors
from trainables.methods.method import Method, load_method
from trainables.training.checkpoint import TrialFiles


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network in evaluation mode, with what it was trained from.

    spec: of the trial; method: its code; config: its hyperparameters, presets included; source: the untouched encoder
    or word vectors; record: trial.json of the checkpoint (spec, evaluation, revisions of data and encoder).
    """

    spec: TrialSpec
    method: Method
    config: Any
    network: Any
    source: EncoderSource
    record: Mapping[str, Any]

    @property
    def language(self) -> str:
        return str(self.spec.data.get("language", "en"))

    @property
    def prompts(self) -> Mapping[str, str]:
        """The texts before queries and documents, by those names."""
        return self.spec.data.get("prompts") or {}

    def tokenise(self, texts: Sequence[str]) -> TokenColumn:
        """Token ids without special tokens; the whole text, however long."""
        rows = [list(ids) for ids in token_ids(self.source, self.language)(texts)]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return TokenColumn(np.array([i for row in rows for i in row], dtype=np.int32), starts)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, D) sentence vectors, of texts behind the study's prompt of queries."""
        prompt = self.prompts.get("query", "")
        column = self.tokenise([prompt + text for text in texts])
        vectors = self.network.embed(column.take(np.arange(len(column))))
        result: NDArray[np.float32] = vectors.float().cpu().numpy()
        return result


class MeanOfWords(nn.Module):
    """Word vectors without a network: a sentence is the mean of its known words' vectors (zeros where it has none)."""

    vectors: torch.Tensor

    def __init__(self, matrix: NDArray[np.float32]) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.from_numpy(matrix))

    @torch.no_grad()
    def embed(self, sequences: Sequence[NDArray[np.int32]]) -> torch.Tensor:
        """(n, D) vectors of sequences of word ids; ids below 0 are unknown words."""
        rows = [self.vectors[torch.from_numpy(ids[ids >= 0]).long()] for ids in sequences]
        return torch.stack([row.mean(0) if len(row) else torch.zeros(self.vectors.shape[1]) for row in rows])


def read_spec(folder: str) -> TrialSpec:
    """A trial's specification, by its checkpoint.

    Raises: AnalysisError as `load_trained`.
    """
    record = read_record(folder)
    return TrialSpec.from_dict((record or _load_best(folder)[1])["spec"])


def load_trained(folder: str, *, texts: Sequence[str] | None = None, untrained: bool = False) -> Trained:
    """The network of a trial's best evaluation.

    Sentences are cut only where the encoder's position embeddings end, as in dev evaluations (methods 7.1);
    `max_length` is training's.

    Args:
        folder: the trial's folder or URI.
        texts: all that will be embedded; word vectors of other words are then not read. None = all words.
        untrained: what the trial started from instead: the encoder as it came, pooled as the trial pools, without a
            head; of word vectors the mean over a sentence's known words.
    Raises: AnalysisError if it holds no checkpoint (a failed trial, or one whose checkpoint was not saved), or one that
        a script wrote, or if the encoder's folder now holds something else; EncoderError or DataError if the encoder or
        vector file it was trained from is gone.
    """
    spec = read_spec(folder)
    if spec.script is not None:
        raise AnalysisError(f"{folder}: a script trained it, so its network is not known here; use `analysis export`")
    weights, record = _load_best(folder)
    try:
        use_plugins(spec.plugins)
        method = load_method(spec.method)
    except PluginError as error:
        raise AnalysisError(f"{folder}: {error}") from error
    config = build(method.config, spec.params)
    with at_origin(f"{study_folder(folder)}/{JOURNAL}", spec.encoder, spec.data):
        language, prompts = str(spec.data.get("language", "en")), spec.data.get("prompts")
        source = load_source(method.declaration.encoders, spec.encoder, language, texts, prompts)
    if changed := change(source, record.get("encoder"), weights=untrained or is_part(weights)):
        raise AnalysisError(
            f"{folder}: {changed} in encoder {spec.encoder} are not those that the trial started from; put them back"
        )
    network: Any
    if not untrained:
        network = method.network(config, source, spec.seed)
        network.load_state_dict(weights)
    elif isinstance(source, WordVectors):
        network = MeanOfWords(source.matrix)
    elif method.untrained is not None:
        network = method.untrained.network(config, source, spec.seed)
    else:
        raise AnalysisError(f"{spec.method} has no base encoder")
    network.eval()
    return Trained(spec, method, config, network, source, record)


def loaders(
    folders: Sequence[str], *, texts: Sequence[str] | None = None, untrained: bool = False
) -> list[Callable[[], Trained]]:
    """A function per trial that loads its network, to be called once: so one at a time is in memory.

    Raises: as `load_trained`. Every network is loaded once here, so that what is missing shows before tests are opened.
    """
    load = partial(load_trained, texts=texts, untrained=untrained)
    for folder in folders[1:]:
        load(folder)
    first = [load(folders[0])]
    return [first.pop, *(partial(load, folder) for folder in folders[1:])]


def _load_best(folder: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        return TrialFiles(folder).load_best()
    except FileNotFoundError as missing:
        raise AnalysisError(f"no checkpoint at {missing}: the trial failed, or its checkpoint was deleted") from None
    except NewerFormatError as error:
        raise AnalysisError(str(error)) from None
