"""What a method says of itself before torch is imported: all that checking a space and looking for its data needs."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainables.contract.config import Settings
from trainables.contract.knobs import knobs


@dataclass(frozen=True)
class EncoderFamily:
    """A kind of thing that `encoder:` names: how messages call it, and the builtin one."""

    what: str
    builtin: str


TRANSFORMER = EncoderFamily("a hub id or a folder", "builtin:tiny")
WORD_VECTORS = EncoderFamily("a file of word vectors", "builtin:vectors")
OWN_ENCODER = EncoderFamily("a hub id or a folder", "")  # of whatever loads it itself


@dataclass(frozen=True)
class Preset:
    """A published setting: `values` differ from the method's defaults; `encoders` are name patterns it belongs to, from
    `named` where it is of one family: what only has its name in it (albert-base, xlm-roberta) was never published."""

    encoders: tuple[str, ...]
    values: Mapping[str, Any]
    source: str


def named(*models: str) -> tuple[str, ...]:
    """Patterns of encoders whose name, behind an owner or a path, begins like one of the models'."""
    return tuple(pattern for model in models for pattern in (f"{model}*", f"*/{model}*"))


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A method without its code.

    Attributes:
        name: the word in `method:` of a space.
        config: its hyperparameters.
        columns: what its training data must have, "sentences" or "triplets" (anchor, positive, hard negative).
        code: `module:NAME` of its `trainables.methods.method.Method`; "" for one that comes with its code.
        runner: `module:NAME` of the `trainables.training.trial.TrialRunner` that runs its trials.
        scripted: a script of the user's trains: the space declares its hyperparameters, and data, encoder and the names
            of its metrics are the script's own business.
        encoders: what `encoder:` names.
        presets: published settings by name.
        parser: whether `data.parser` means something to it.
        languages: those that it has rules for; None = it needs none.
        prompts: whether its examples are tokenised with the prompts of `data.prompts` before them.
        preflight: looks for what else a study needs before Ray starts. Gets method, encoder, data, metric and params
            (values where nothing is searched) by name as in a `TrialSpec`; raises what says it in one line.
        smoke: hyperparameters of a smoke run, where its defaults would take longer than others.
        transfer_pooling: pooling for transfer tasks, None = as trained.
        usage: lines of Python that load an export from the current folder; "" = SentenceTransformer does.
        paper: what a model card cites, "title, arXiv:number" or "title, doi:number"; "" = nothing.
    """

    name: str
    config: type[Settings]
    columns: Literal["sentences", "triplets"] = "sentences"
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

    def values(self, preset: str | Mapping[str, Any] | None = None) -> dict[str, Any]:
        """YAML-named defaults under a preset (its name, or its values), lists as lists."""
        known = knobs(self.config).items()
        defaults = {name: list(knob.default) if knob.kind == "ints" else knob.default for name, knob in known}
        named = self.presets[preset].values if isinstance(preset, str) else preset
        return defaults | dict(named or {})
