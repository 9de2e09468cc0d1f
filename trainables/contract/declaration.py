"""What a method or a dev evaluation declares about itself: all that checking a space and its data needs. No torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trainables.contract.config import Settings, hyperparameters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EmbedTexts: TypeAlias = (
    "Callable[[Sequence[str]], NDArray[np.float32]]"  # n texts -> (n, D) test-time vectors, any norm
)


@dataclass(frozen=True)
class EncoderFamily:
    """A kind of encoder that `encoder:` names. what: its name in messages; builtin: the one that is shipped."""

    what: str
    builtin: str


TRANSFORMER = EncoderFamily("a hub id or a folder", "builtin:tiny")
WORD_VECTORS = EncoderFamily("a file of word vectors", "builtin:vectors")
OWN_ENCODER = EncoderFamily("a hub id or a folder", "")  # a script loads it itself


@dataclass(frozen=True)
class Preset:
    """A published setting.

    Attributes:
        encoders: name patterns of the encoders it was published for (`named`).
        values: what differs from the method's defaults, by YAML name.
        source: paper and table.
    """

    encoders: tuple[str, ...]
    values: Mapping[str, Any]
    source: str


def named(*models: str) -> tuple[str, ...]:
    """Patterns of the encoders whose name, after an owner or a path, begins with one of `models`.

    A name that only contains it does not match: no paper trained albert-base or xlm-roberta.
    """
    return tuple(pattern for model in models for pattern in (f"{model}*", f"*/{model}*"))


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A method without its code.

    Attributes:
        name: the word in `method:` of a space.
        config: class of its hyperparameters.
        columns: what its training data must have: "sentences", "triplets" (anchor, positive, hard negative), "pairs"
            (anchor, positive; hard negatives if there are) or "scored_pairs" (first, second, score).
        code: `module:NAME` of its `trainables.methods.method.Method`; "" for a method that comes with its code.
        runner: `module:NAME` of the `trainables.training.trial.TrialRunner` that runs its trials.
        scripted: a user's script trains: the space declares the hyperparameters, and data, encoder and metric names
            are the script's own.
        encoders: what `encoder:` names.
        presets: published settings by name.
        parser: whether `data.parser` has an effect.
        languages: those that it has rules for; None = all.
        prompts: whether its examples are tokenised with the prompts of `data.prompts` before them.
        preflight: checks what else a study needs before Ray starts. Gets method, encoder, data, metric and params
            (constants where nothing is searched) by name as in a `TrialSpec`; raises a one-line error.
        smoke: hyperparameters of a smoke run, where its defaults would take longer than other methods'.
        transfer_pooling: pooling for transfer tasks, None = as trained.
        usage: lines of Python that load an export from the current folder; "" = SentenceTransformer loads it.
        paper: what a model card cites, "title, arXiv:number" or "title, doi:number"; "" = nothing.
    """

    name: str
    config: type[Settings]
    columns: Literal["sentences", "triplets", "pairs", "scored_pairs"] = "sentences"
    code: str = ""
    runner: str = "trainables.training.method_trial:train_by_method"
    scripted: bool = False
    encoders: EncoderFamily = TRANSFORMER
    presets: Mapping[str, Preset] = field(default_factory=dict)
    parser: bool = False
    languages: tuple[str, ...] | None = None
    prompts: bool = False
    preflight: Callable[[Mapping[str, Any]], None] | None = None
    smoke: Mapping[str, Any] = field(default_factory=dict)
    transfer_pooling: str | None = None
    usage: str = ""
    paper: str = ""

    def preset_for(self, encoder: str) -> str | None:
        """The preset whose encoder patterns fit best (the longest matching pattern), or None."""
        fits = [
            (len(pattern), name)
            for name, preset in self.presets.items()
            for pattern in preset.encoders
            if fnmatch.fnmatch(encoder.lower(), pattern)
        ]
        return max(fits)[1] if fits else None

    def rows(self, data: Mapping[str, Any]) -> str:
        """What a training file must have for a study's `data`: `columns`, but pairs where their negatives are mined."""
        return "pairs" if data.get("mine") and self.columns == "triplets" else self.columns

    def values(self, preset: str | Mapping[str, Any] | None = None) -> dict[str, Any]:
        """YAML-named defaults under a preset (its name, or its values), lists as lists."""
        known = hyperparameters(self.config)
        defaults = {name: list(h.default) if isinstance(h.default, tuple) else h.default for name, h in known.items()}
        return defaults | dict((self.presets[preset].values if isinstance(preset, str) else preset) or {})


@dataclass(frozen=True, kw_only=True)
class DevEvaluation:
    """Measured at every evaluation of a trial, beside the dev sets; each of its metrics can select.

    Attributes:
        name: the word under `data.evaluations` of a space.
        metrics: names of the values, higher = better unless `metric.mode` is min; `topics` is tracked as `topics_dev`
            and printed x 100 like the built-in ones. Where it did not select, `analysis` wants `max(topics_dev)` or
            `min(topics_dev)`.
        evaluate: (embed, folder) -> a finite number for each of `metrics`. folder: what the space gives it (a folder or
            file of data), None without. Must not depend on time or chance (the generators of `random`, numpy and torch
            are reset afterwards), and must never read test data.
    """

    name: str
    metrics: tuple[str, ...]
    evaluate: Callable[[EmbedTexts, Path | None], Mapping[str, float]]
