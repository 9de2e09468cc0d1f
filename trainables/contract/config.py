"""Hyperparameters: how a field declares its range, meaning and source, and the fields that methods share.

A configuration is a frozen dataclass of `hyperparameter(...)` fields. A space file is checked against them without
torch; a method reads plain attributes. A subclass changes a default with a plain value (`epochs: int = 3`) and inherits
the rest. A method's own fields are in its `config` module. D-numbers are decisions where the papers are silent or
contradict each other (docs/methods.md). Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

C = TypeVar("C")
Conflicts = Sequence[tuple[str, str]]
Unused = Mapping[str, tuple[str, Any] | None]

POOLINGS = ("cls", "cls_before_pooler", "last", "avg", "avg_first_last", "avg_top2", "pretrained_pooler")
HEADS = ("linear_tanh", "mlp_bn", "none")
AUTO = "auto"
GROUPS = ("lora",)  # `lora: {rank: 8}` is written for `lora.rank: 8`
_NOUNS = {
    "float": "a number", "int": "a whole number", "bool": "true or false", "str": "text",
    "ints": "a list of whole numbers", "words": "a list of names",
}  # fmt: skip


@dataclass(frozen=True)
class Hyperparameter:
    """The values that one hyperparameter takes, and what it means.

    Attributes:
        name: the key in YAML and in tables (`lambda`, where the Python field is `lambda_`).
        kind: "float", "int", "bool", "str", "ints" or "words" (a tuple of integers or texts, written as a YAML list).
        default: the value if the space gives none.
        low, high: closed bounds; `above`, `below`: open ones. None = unbounded.
        choices: allowed values of a "str" (or of a number with few legal values).
        optional: None (YAML `null`) is allowed.
        word: a text that is allowed beside numbers.
        doc: one line: meaning, unit and source (paper section or D-number).
        field: the name of the Python field.
    """

    name: str
    kind: str
    default: Any
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    optional: bool = False
    word: str | None = None
    doc: str = ""
    field: str = ""

    def problem(self, value: Any) -> str | None:
        """What is wrong with `value` in one line (expected, got), or None if it is allowed."""
        wrong = [value]
        if self.kind == "ints" and isinstance(value, (list, tuple)) and value and all(map(_is_int, value)):
            wrong = [element for element in value if not self._in_range(element)]
        elif self._allows(value):
            return None
        return f"expected {self.expected()}, got {'null' if wrong[0] is None else repr(wrong[0])}" if wrong else None

    def _allows(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.word is not None and value == self.word:
            return True
        is_number = _is_int(value) or (self.kind == "float" and isinstance(value, float))
        fits = {
            "bool": isinstance(value, bool),
            "str": isinstance(value, str),
            "words": isinstance(value, (list, tuple)) and all(isinstance(v, str) and v.strip() for v in value),
            "ints": False,
        }.get(self.kind, is_number)
        if not fits or self.choices is not None:
            return fits and value in (self.choices or ())
        return self._in_range(value) if is_number else True

    def _in_range(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def expected(self) -> str:
        """The allowed values in words, such as "a number > 0" or "one of one_way, nt_xent"."""
        if self.choices is not None:
            return "one of " + ", ".join(map(str, self.choices))
        signs = {">=": self.low, ">": self.above, "<=": self.high, "<": self.below}
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in signs.items() if bound is not None)
        others = [word for word in (self.word, "null" if self.optional else None) if word]
        return " or ".join([f"{_NOUNS[self.kind]} {bounds}".strip(), *others])

    def coerce(self, value: Any) -> Any:
        """The value as the dataclass stores it (an int becomes a float where a float is expected, a list a tuple)."""
        if value is None or value == self.word:
            return value
        if self.kind == "float":
            return float(value)
        return tuple(value) if self.kind in ("ints", "words") else value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def hyperparameter(default: Any, doc: str, *, kind: str | None = None, name: str | None = None, **limits: Any) -> Any:
    """A dataclass field that declares a `Hyperparameter`.

    Args:
        kind: None = the default's type. A default of None needs it, and makes the hyperparameter optional.
        name: None = the field's name.
        limits: further attributes of `Hyperparameter`.
    """
    if kind is None:
        kind = "ints" if isinstance(default, tuple) else type(default).__name__
    assert kind in _NOUNS, kind
    declared = {"name": name, "kind": kind, "doc": doc, "optional": default is None} | limits
    return dataclasses.field(default=default, metadata={"hyperparameter": declared})


def hyperparameters(config: type[Any]) -> dict[str, Hyperparameter]:
    """All hyperparameters of a configuration class by YAML name, in the order of the class."""
    found = {}
    for f in dataclasses.fields(config):
        declared = inherited(config, f.name)
        name = declared["name"] or f.name
        found[name] = Hyperparameter(**{**declared, "name": name, "default": f.default, "field": f.name})
    return found


def inherited(config: type[Any], field: str) -> dict[str, Any]:
    """What `hyperparameter` declared for a field of this class or of one that it extends; empty if nothing did."""
    own = (vars(base).get("__dataclass_fields__", {}).get(field) for base in config.__mro__)
    return next((dict(f.metadata["hyperparameter"]) for f in own if f and "hyperparameter" in f.metadata), {})


def build(config: type[C], values: Mapping[str, Any]) -> C:
    """The configuration object for YAML-named `values`.

    Raises: ValueError naming every wrong key: unknown names, wrong types and ranges; if there are none, conflicts.
    """
    known = hyperparameters(config)
    wrong = [(name, "unknown") for name in values if name not in known]
    wrong += [(n, found) for n, v in values.items() if n in known and (found := known[n].problem(v))]
    if not wrong and issubclass(config, Settings):
        wrong = list(config.conflicts({name: values.get(name, h.default) for name, h in known.items()}))
    if wrong:
        raise ValueError("; ".join(f"{name}: {message}" for name, message in wrong))
    return config(**{known[name].field: known[name].coerce(value) for name, value in values.items()})


def values(config: Any) -> dict[str, Any]:
    """The YAML-named values of a configuration object (the inverse of `build`)."""
    own = {name: getattr(config, h.field) for name, h in hyperparameters(type(config)).items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


class Settings:
    """Base of every configuration class."""

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        """Values that do not go together, as (hyperparameter, what is wrong). v: all values by YAML name."""
        del v
        return []

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        """Hyperparameters without effect -> the other one that decides it and its value; None = whatever the values."""
        del v
        return {}


def unused_if(v: Mapping[str, Any], name: str, value: Any, *unused: str) -> dict[str, tuple[str, Any] | None]:
    """For `Settings.unused`: the hyperparameters that have no effect while `name` has this value."""
    return dict.fromkeys(unused, (name, value)) if v[name] == value else {}


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """What every method has: how much data, how long, how often evaluated."""

    batch_size: int = hyperparameter(64, "N, training examples per optimiser step, over all workers", low=2)
    sample_size: int | None = hyperparameter(
        None, "training examples drawn once per run, null = all (EdaCSE Tables 5-7)", kind="int", low=2
    )
    epochs: int = hyperparameter(1, "passes over the (sampled) training data", low=1)
    max_examples: int | None = hyperparameter(
        None, "stop after this many training examples, null = all epochs", kind="int", low=1
    )
    eval_examples: int = hyperparameter(8000, "training examples between two evaluations (125 steps of 64, D06)", low=1)
    eval_steps: int | None = hyperparameter(
        None, "optimiser steps between two evaluations; wins over eval_examples (D06)", kind="int", low=1
    )
    precision: str = hyperparameter(
        "auto",
        "auto: bf16 where the device multiplies it in hardware, fp16 with loss scaling on a GPU that has only that",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    micro_batch: int | str | None = hyperparameter(
        None,
        "examples that a worker encodes at a time, null = its whole share, auto = as many as its memory holds; the "
        "gradient is that of the whole batch (GradCache, arXiv:2101.06983)",
        kind="int", low=1, word=AUTO,
    )  # fmt: skip
    checkpoint_seconds: float = hyperparameter(
        60.0,
        "most work that a crash of the trial's process loses, or 20 times what a save takes; 0 = save at every step",
        low=0,
    )

    @staticmethod
    def saturation_values(v: Mapping[str, Any], examples: int) -> dict[str, float]:
        """The value of each hyperparameter beyond which larger values (and null) change nothing.

        Args: v: the other hyperparameters by name; examples: at least as many as are trained on in an epoch.
        """
        seen = v["epochs"] * examples
        found: dict[str, float] = {"batch_size": examples, "max_examples": seen}
        return found | ({} if v["eval_steps"] else {"eval_examples": min(seen, v["max_examples"] or seen)})


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(RunConfig):
    """What the methods on a transformer encoder share."""

    batches: str = hyperparameter(
        "shuffled",
        "shuffled: every epoch a new order; no_duplicates: also no text twice in a batch, where it would be its own "
        "negative",
        choices=("shuffled", "no_duplicates"),
    )
    sets: str = hyperparameter(
        "joined",
        "of several training sets: joined = as one; else one set a batch: proportional = all of each, in random order; "
        "round_robin = one batch of each in turn, until a set has no more",
        choices=("joined", "proportional", "round_robin"),
    )
    set_weights: tuple[int, ...] | None = hyperparameter(
        None, "factors on the sets' numbers of batches, in the order of data.train; null = 1 each", kind="ints", low=0
    )
    learning_rate: float = hyperparameter(3e-5, "peak learning rate of AdamW", above=0)
    dropout: float = hyperparameter(0.1, "p of the hidden and the attention-probability dropout", low=0, below=1)
    temperature: float = hyperparameter(0.05, "tau, divides the cosine", above=0)
    pooling: str = hyperparameter("cls", "sentence vector from hidden states (D01, D02)", choices=POOLINGS)
    include_prompt: bool = hyperparameter(
        True, "of mean poolings: whether the tokens of the prompt count; false = they, and special ones before, do not"
    )
    bidirectional: bool = hyperparameter(
        False, "of a decoder: every token sees the whole sentence, where the family allows it"
    )
    head: str = hyperparameter("linear_tanh", "head on pooling `cls`; other poolings have none", choices=HEADS)
    head_at: str = hyperparameter("train_only", "where the head is used", choices=("train_only", "train_and_test"))
    weight_decay: float = hyperparameter(0.0, "AdamW weight decay, all parameters (1.7)", low=0)
    lr_decay: str = hyperparameter("linear", "shape after warm-up", choices=("linear", "cosine", "constant"))
    warmup_share: float = hyperparameter(0.0, "share of the steps with linear warm-up", low=0, below=1)
    max_grad_norm: float = hyperparameter(1.0, "gradient norm clipping, 0 = off", low=0)
    max_length: int = hyperparameter(32, "tokens per sentence at most, special tokens included", low=4)
    eval_max_length: int | None = hyperparameter(
        None,
        "tokens per text at most in evaluations, tests, exports, null = what the encoder was trained on: its folder's "
        "`max_seq_length`, else all its positions",
        kind="int", low=4,
    )  # fmt: skip
    matryoshka: tuple[int, ...] | None = hyperparameter(
        None,
        "descending widths: the loss is the sum over the vectors cut to each (arXiv:2205.13147), dev metrics are given "
        "of each (`stsb_dev@128`), null = whole vectors only",
        kind="ints", low=1,
    )  # fmt: skip
    mlm_weight: float = hyperparameter(0.0, "mu of the masked-language-model term, 0 = off (1.6)", low=0)
    mlm_probability: float = hyperparameter(0.15, "share of tokens masked for the MLM term", above=0, below=1)
    lora_rank: int = hyperparameter(
        0, "r of LoRA's adapters (arXiv:2106.09685), all of the encoder that is trained then; 0 = off",
        name="lora.rank", low=0, high=1024,
    )  # fmt: skip
    lora_alpha: float = hyperparameter(
        16.0, "what adapters add is multiplied by alpha / rank", name="lora.alpha", above=0
    )
    lora_dropout: float = hyperparameter(
        0.0, "p of dropout on the adapters' inputs", name="lora.dropout", low=0, below=1
    )
    lora_targets: str = hyperparameter(
        "all-linear", "adapted linear layers: all-linear (arXiv:2305.14314), attention, or names after commas",
        name="lora.targets",
    )  # fmt: skip
    freeze: int | None = hyperparameter(
        None, "the embeddings and this many first layers stay as they are, 0 = embeddings only, null = all are trained",
        kind="int", low=0,
    )  # fmt: skip
    layer_decay: float = hyperparameter(1.0, "learning rate of a layer over that of the one above it", above=0, high=1)
    checkpointing: bool = hyperparameter(
        False, "layers are computed again in backward instead of stored: less memory, a third more time, same numbers"
    )

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        widths = list(v["matryoshka"] or ())
        if widths != sorted(set(widths), reverse=True):
            return [("matryoshka", f"expected descending widths, got {widths}")]
        if widths and v["pooling"] == "cls" and v["head"] != "none" and v["head_at"] == "train_only":
            message = (
                "needs head none or head_at train_and_test: a head that is dropped after training has other widths"
            )
            return [("matryoshka", message)]
        if v["lora.rank"] and v["freeze"] is not None:
            return [
                ("freeze", "does not go with lora.rank above 0: adapters are all that is trained of the encoder then")
            ]
        if v["head_at"] == "train_and_test" and v["pooling"] != "cls":
            return [("head_at", f"train_and_test needs pooling cls, got {v['pooling']} (a head exists only there)")]
        if v["mlm_weight"] and v["micro_batch"]:
            return [("micro_batch", "does not go with mlm_weight: its term is over the whole batch")]
        if v["micro_batch"] == AUTO and v["checkpointing"]:
            return [("micro_batch", "auto does not count what checkpointing makes anew: write a number")]
        if v["set_weights"] and not any(v["set_weights"]):
            return [("set_weights", "expected a weight above 0")]
        return []

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = unused_if(v, "lora.rank", 0, "lora.alpha", "lora.dropout", "lora.targets")
        found |= unused_if(v, "mlm_weight", 0, "mlm_probability") | unused_if(v, "sets", "joined", "set_weights")
        if v["pooling"] != "cls" and v["head"] != "none":  # without `cls` there is no head anyway
            found["head"] = ("pooling", v["pooling"])
        if not v["pooling"].startswith("avg"):
            found["include_prompt"] = ("pooling", v["pooling"])
        return found
