"""The hyperparameters that methods share, each with its default, legal range and source.

A method's own ones lie in its `config` module. D-numbers are decisions of the method specification: where the papers
are silent or contradict each other, the decision taken. Standard library only: spaces are checked without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.knobs import Conflicts, Idle, knob

POOLINGS = ("cls", "cls_before_pooler", "last", "avg", "avg_first_last", "avg_top2", "pretrained_pooler")
HEADS = ("linear_tanh", "mlp_bn", "none")
AUTO = "auto"
GROUPS = ("lora",)  # `lora: {rank: 8}` is written for `lora.rank: 8`


class Settings:
    """What every configuration class is."""

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        """Values that do not go together, as (hyperparameter, what is wrong). v: all values by YAML name."""
        del v
        return []

    @staticmethod
    def idle(v: Mapping[str, Any]) -> Idle:
        """Hyperparameters that nothing reads under these values, and which value of which other one is why."""
        del v
        return {}


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """What every method has: how much data, how long, how often evaluated."""

    batch_size: int = knob(64, "N, training examples per optimiser step, over all workers", low=2)
    sample_size: int | None = knob(
        None, "training examples drawn once per run, null = all (EdaCSE Tables 5-7)", kind="int", low=2, optional=True
    )
    epochs: int = knob(1, "passes over the (sampled) training data", low=1)
    max_examples: int | None = knob(
        None, "stop after this many training examples, null = all epochs", kind="int", low=1, optional=True
    )
    eval_examples: int = knob(8000, "training examples between two evaluations (125 steps of 64, D06)", low=1)
    eval_steps: int | None = knob(
        None, "optimiser steps between two evaluations; wins over eval_examples (D06)", kind="int", low=1, optional=True
    )
    precision: str = knob(
        "auto", "auto: bf16 where the device multiplies it in hardware", choices=("auto", "fp32", "bf16")
    )
    micro_batch: int | str | None = knob(
        None,
        "examples that a worker encodes at a time, null = its whole share, auto = as many as its memory holds; memory "
        "is of so many, the gradient that of the whole batch (GradCache, arXiv:2101.06983)",
        kind="int", low=1, optional=True, word=AUTO,
    )  # fmt: skip
    checkpoint_seconds: float = knob(
        60.0,
        "work lost at most when a trial's process dies, or 20 times what a save takes; 0 = save at every step",
        low=0,
    )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(RunConfig):
    """What the methods on a transformer encoder share."""

    learning_rate: float = knob(3e-5, "peak learning rate of AdamW", above=0)
    dropout: float = knob(0.1, "p of the hidden and the attention-probability dropout", low=0, below=1)
    temperature: float = knob(0.05, "tau, divides the cosine", above=0)
    pooling: str = knob("cls", "sentence vector from hidden states (D01, D02)", choices=POOLINGS)
    bidirectional: bool = knob(False, "of a decoder: every token sees the whole sentence, where the family allows it")
    head: str = knob("linear_tanh", "head on pooling `cls`; other poolings have none", choices=HEADS)
    head_at: str = knob("train_only", "where the head is used", choices=("train_only", "train_and_test"))
    weight_decay: float = knob(0.0, "AdamW weight decay, all parameters (1.7)", low=0)
    lr_decay: str = knob("linear", "shape after warm-up", choices=("linear", "cosine", "constant"))
    warmup_share: float = knob(0.0, "share of the steps with linear warm-up", low=0, below=1)
    max_grad_norm: float = knob(1.0, "gradient norm clipping, 0 = off", low=0)
    max_length: int = knob(32, "tokens kept per sentence, special tokens included", low=4)
    mlm_weight: float = knob(0.0, "mu of the masked-language-model term, 0 = off (1.6)", low=0)
    mlm_probability: float = knob(0.15, "share of tokens masked for the MLM term", above=0, below=1)
    lora_rank: int = knob(
        0, "r of LoRA's adapters (arXiv:2106.09685), all of the encoder that is trained then; 0 = off",
        name="lora.rank", low=0, high=1024,
    )  # fmt: skip
    lora_alpha: float = knob(16.0, "what adapters add is multiplied by alpha / rank", name="lora.alpha", above=0)
    lora_dropout: float = knob(0.0, "p of dropout on the adapters' inputs", name="lora.dropout", low=0, below=1)
    lora_targets: str = knob(
        "all-linear", "adapted linear layers: all-linear (arXiv:2305.14314), attention, or names after commas",
        name="lora.targets",
    )  # fmt: skip

    freeze: int | None = knob(
        None, "the embeddings and this many first layers stay as they are, 0 = embeddings only, null = all are trained",
        kind="int", low=0, optional=True,
    )  # fmt: skip
    layer_decay: float = knob(1.0, "learning rate of a layer over that of the one above it", above=0, high=1)
    checkpointing: bool = knob(
        False, "layers are computed again in backward instead of kept: less memory, a third more time, the same numbers"
    )

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
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
        return []

    @staticmethod
    def idle(v: Mapping[str, Any]) -> Idle:
        found = idle_under(v, "lora.rank", 0, "lora.alpha", "lora.dropout", "lora.targets")
        found |= idle_under(v, "mlm_weight", 0, "mlm_probability")
        if v["pooling"] != "cls" and v["head"] != "none":  # "none" is what there is
            found["head"] = ("pooling", v["pooling"])
        return found


def idle_under(v: Mapping[str, Any], name: str, value: Any, *idle: str) -> dict[str, tuple[str, Any]]:
    """For `Settings.idle`: those that nothing reads when `name` has this value."""
    return dict.fromkeys(idle, (name, value)) if v[name] == value else {}
