"""The hyperparameters of every method, each with its default, legal range and source, and the papers' presets.

D-numbers are decisions of the method specification: where the papers are silent or contradict each other, the decision
taken. Standard library only, so that spaces are checked without torch. The methods themselves are in the
modules of the same names.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.knobs import Conflicts, knob

POOLINGS = ("cls", "cls_before_pooler", "avg", "avg_first_last", "avg_top2", "pretrained_pooler")
HEADS = ("linear_tanh", "mlp_bn", "none")
ALPHABETS = ("english", "chinese", "chinese_without_strong", "english_without_strong", "english_extended")
EDITS = ("pi", "mv", "dn", "ensemble")
COMPARISON_EDITS = (
    "crop_10", "crop_20", "crop_30", "delete_10", "delete_20", "delete_30", "synonym", "mask", "repeat",
    "random_punctuation",
)  # fmt: skip  # SDA Tables 8-9
TEXTCNN_WIDTH = 4096  # GCLSR projector output, cut into pieces of group_size (D48)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
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
    checkpoint_seconds: float = knob(
        60.0, "at most this much work is lost when a trial's process dies; 0 = save at every evaluation", low=0
    )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(RunConfig):
    """What the methods on a transformer encoder share."""

    learning_rate: float = knob(3e-5, "peak learning rate of AdamW", above=0)
    dropout: float = knob(0.1, "p of the hidden and the attention-probability dropout", low=0, below=1)
    temperature: float = knob(0.05, "tau, divides the cosine", above=0)
    pooling: str = knob("cls", "sentence vector from hidden states (D01, D02)", choices=POOLINGS)
    head: str = knob("linear_tanh", "head on pooling `cls`; other poolings have none", choices=HEADS)
    head_at: str = knob("train_only", "where the head is used", choices=("train_only", "train_and_test"))
    weight_decay: float = knob(0.0, "AdamW weight decay, all parameters (1.7)", low=0)
    lr_decay: str = knob("linear", "shape after warm-up", choices=("linear", "cosine", "constant"))
    warmup_share: float = knob(0.0, "share of the steps with linear warm-up", low=0, below=1)
    max_grad_norm: float = knob(1.0, "gradient norm clipping, 0 = off", low=0)
    max_length: int = knob(32, "tokens kept per sentence, special tokens included", low=4, high=512)
    mlm_weight: float = knob(0.0, "mu of the masked-language-model term, 0 = off (1.6)", low=0)
    mlm_probability: float = knob(0.15, "share of tokens masked for the MLM term", above=0, below=1)

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        if v["head_at"] == "train_and_test" and v["pooling"] != "cls":
            return [("head_at", f"train_and_test needs pooling cls, got {v['pooling']} (a head exists only there)")]
        return []


@dataclass(frozen=True, kw_only=True)
class SimcseConfig(EncoderConfig):
    """Unsupervised SimCSE (arXiv:2104.08821, Sec. 3)."""

    loss_form: str = knob("one_way", "N x N one-way, or symmetric NT-Xent (D04)", choices=("one_way", "nt_xent"))


@dataclass(frozen=True, kw_only=True)
class SimcseSupConfig(EncoderConfig):
    """Supervised SimCSE (arXiv:2104.08821, Sec. 4) on NLI triplets."""

    batch_size: int = knob(512, "N, triplets per optimiser step, over all workers", low=2)
    learning_rate: float = knob(5e-5, "peak learning rate of AdamW", above=0)
    epochs: int = knob(3, "passes over the triplets", low=1)
    eval_examples: int = knob(64000, "training examples between two evaluations (125 steps of 512)", low=1)
    head_at: str = knob("train_and_test", "where the head is used", choices=("train_only", "train_and_test"))
    hard_negative_weight: float = knob(0.0, "w = ln alpha, added to the own negative's logit (1.5)")
    loss_form: str = knob(
        "hard",
        "hard: anchors against 2N; both_rows: anchors and positives as rows (2.2)",
        choices=("hard", "both_rows"),
    )


@dataclass(frozen=True, kw_only=True)
class EdacseConfig(EncoderConfig):
    """EdaCSE (Appl. Sci. 2023, 13, 10120): a second InfoNCE term with inserted punctuation."""

    batch_size: int = knob(32, "N, sentences per optimiser step, over all workers", low=2)
    weight_decay: float = knob(0.01, "AdamW weight decay", low=0)
    lr_decay: str = knob("cosine", "shape after warm-up", choices=("linear", "cosine", "constant"))
    max_length: int = knob(64, "tokens kept per sentence, special tokens included (D15)", low=4, high=512)
    sample_size: int | None = knob(10000, "sentences drawn once per run (D14)", kind="int", low=2, optional=True)
    eval_examples: int = knob(4000, "training examples between two evaluations (125 steps of 32)", low=1)
    lambda_: float = knob(0.6, "weight of the augmented term (Table 15)", name="lambda", low=0)
    max_marks: int = knob(3, "at most this many marks inserted, 0 = plain SimCSE (Tables 9-11)", low=0, high=7)
    alphabet: str = knob("english", "marks to draw from (Tables 12-14, D12)", choices=ALPHABETS)
    unit: str = knob("character", "what a gap lies between (D10)", choices=("character", "word"))


@dataclass(frozen=True, kw_only=True)
class SdaConfig(EncoderConfig):
    """SDA (arXiv:2210.03963): a minimal syntactic edit is the positive, its negation a relaxed negative."""

    learning_rate: float = knob(2e-5, "peak learning rate of AdamW", above=0)
    batch_size: int = knob(128, "N, sentences per optimiser step, over all workers", low=2)
    head: str = knob("mlp_bn", "head on pooling `cls` (D20)", choices=HEADS)
    eval_examples: int = knob(32000, "training examples between two evaluations (250 steps of 128)", low=1)
    augmentation: str = knob("mv", "the edit (Table 3; comparison edits: Tables 8-9)", choices=EDITS + COMPARISON_EDITS)
    rule_set: str = knob("official", "the public code as it is, or repaired (D22, D38)", choices=("official", "fixed"))
    negation_negative: bool = knob(True, "add the negated sentence as own hard negative (Table 6)")
    negation_scope: str = knob("own", "negation negatives seen by an anchor (D24)", choices=("own", "all"))
    delta: float = knob(0.5, "margin subtracted from the negation's cosine (4.4, D26)", low=0, high=1)
    augmentation_share: float = knob(
        1.0, "share of sentences paired with their edit, rest with itself (D27)", low=0, high=1
    )


@dataclass(frozen=True, kw_only=True)
class SelfcclConfig(EncoderConfig):
    """SelfCCL (Appl. Sci. 2023, 13, 1913): curriculum over NLI triplets scored by the untouched encoder."""

    batch_size: int = knob(512, "N, triplets per optimiser step, over all workers", low=2)
    learning_rate: float = knob(5e-5, "peak learning rate of AdamW (D36)", above=0)
    epochs: int = knob(4, "T of the pacing function", low=1)
    pooling: str = knob("avg_first_last", "in scoring and in training (D31)", choices=POOLINGS)
    head: str = knob("none", "head on pooling `cls`; other poolings have none", choices=HEADS)
    eval_examples: int = knob(64000, "training examples between two evaluations (125 steps of 512)", low=1)
    margin: float = knob(0.2, "m of the easy / semi-hard border (5.2)", low=0, high=2)
    order: str = knob(
        "ascending", "curriculum, anti-curriculum, fixed random", choices=("ascending", "descending", "random")
    )
    pacing_exponent: float = knob(1.0, "lambda of g(t): 0.5 root, 1 linear, 2 quadratic (5.3)", above=0)
    pacing_unit: str = knob("epoch", "what t counts (D34)", choices=("epoch", "step"))
    pacing: bool = knob(True, "false: every epoch sees all triplets (equal-step control, D35)")
    equal_steps: bool = knob(False, "train exactly epochs * floor(k/N) steps whatever the pacing (D35)")


@dataclass(frozen=True, kw_only=True)
class GclsrConfig(RunConfig):
    """GCLSR (Appl. Sci. 2023, 13, 9873): TextCNN over word vectors, grouped loss without negatives."""

    batch_size: int = knob(512, "N, last partial batch dropped", low=2)
    sample_size: int | None = knob(10000, "sentences drawn once per run (6.1)", kind="int", low=2, optional=True)
    epochs: int = knob(20, "passes over the sentences", low=1)
    eval_examples: int = knob(10000, "training examples between two evaluations (one epoch, D52)", low=1)
    group_size: int = knob(
        16, "values per piece of the 4096-wide vectors; 4096 = no groups (D48)", low=1, high=TEXTCNN_WIDTH
    )
    num_groups: int | None = knob(
        None, "pieces per vector; wins over group_size (D48)", kind="int", low=1, high=TEXTCNN_WIDTH, optional=True
    )
    region_sizes: tuple[int, ...] = knob(
        (1, 1, 1, 6, 15, 20), "widths of the convolutions (Table 9, D49)", low=1, high=64
    )
    filters: int = knob(300, "F, filters per region size (D50)", low=1)
    base_lr: float = knob(0.03, "learning rate is base_lr * N / 128 (D51)", above=0)
    predictor_lr: float | None = knob(
        1.0,
        "constant rate of the predictor, null = same schedule as the rest (Table 6)",
        kind="float",
        above=0,
        optional=True,
    )
    weight_decay: float = knob(0.001, "SGD weight decay, all parameters, batch-norm included", low=0)
    momentum: float = knob(0.9, "Nesterov momentum during warm-up", low=0, below=1)
    momentum_after_warmup: float = knob(0.8, "Nesterov momentum after warm-up (Table 7)", low=0, below=1)
    warmup_epochs: int = knob(5, "epochs of linear warm-up from 0 (Table 8)", low=0)
    max_words: int = knob(64, "words kept per sentence", low=1, high=512)
    augmentation: str = knob(
        "partial", "PWVA mode: none, full (p = 1), partial (p)", choices=("none", "full", "partial")
    )
    pwva: str = knob("code", "formulas of the public code or of the paper (D42)", choices=("code", "paper"))
    pwva_p: float = knob(0.5, "probability that a word is augmented (D41)", low=0, high=1)
    p_gwn: float = knob(0.5, "probability of Gaussian white noise (D42)", low=0, high=1)
    p_rzs: float = knob(0.2, "probability of random zero setting", low=0, high=1)
    p_ifft: float = knob(0.1, "probability of the Fourier operation", low=0, high=1)
    p_rbn: float = knob(0.2, "probability of random background noise", low=0, high=1)
    self_attention: bool = knob(True, "word-importance attention in training (6.3)")
    attention_at_eval: bool = knob(False, "apply it at evaluation too (D44)")
    projector_last_bn: bool = knob(True, "batch-norm after the last projector layer (D45)")
    oov: str = knob(
        "fixed",
        "unknown words: one vector per word and seed, or a new one at every use (D40)",
        choices=("fixed", "resample"),
    )

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        found = [
            (key, f"must divide {TEXTCNN_WIDTH}, got {v[key]}")
            for key in ("group_size", "num_groups")
            if v[key] is not None and TEXTCNN_WIDTH % v[key]
        ]
        total = v["p_gwn"] + v["p_rzs"] + v["p_ifft"] + v["p_rbn"]
        if abs(total - 1) > 1e-6:
            found.append(("p_gwn", f"p_gwn + p_rzs + p_ifft + p_rbn must be 1, got {total:g}"))
        if max(v["region_sizes"]) > v["max_words"]:
            found.append(
                (
                    "region_sizes",
                    f"no region may be wider than max_words {v['max_words']}, got {max(v['region_sizes'])}",
                )
            )
        return found


CONFIGS: dict[str, type[RunConfig]] = {
    "simcse": SimcseConfig,
    "simcse_sup": SimcseSupConfig,
    "edacse": EdacseConfig,
    "sda": SdaConfig,
    "selfccl": SelfcclConfig,
    "gclsr": GclsrConfig,
}
NEEDS = {  # the columns a method's training data must have
    "simcse": "sentences",
    "simcse_sup": "triplets",
    "edacse": "sentences",
    "sda": "sentences",
    "selfccl": "triplets",
    "gclsr": "sentences",
}


@dataclass(frozen=True)
class Preset:
    """A published setting: `values` differ from the method's defaults; `encoders` are name patterns it belongs to."""

    method: str
    encoders: tuple[str, ...]
    values: Mapping[str, Any]
    source: str


_POST = {
    "pooling": "cls_before_pooler", "head": "none", "weight_decay": 0.01, "lr_decay": "constant", "max_grad_norm": 0.0,
    "epochs": 2, "eval_steps": 100, "max_length": 64,
}  # fmt: skip  # D07

PRESETS: dict[str, Preset] = {
    "simcse_unsup": Preset("simcse", ("*bert-base*",), {}, "SimCSE Table A.1, BERT-base"),
    "simcse_unsup_large": Preset("simcse", ("*bert-large*",), {"learning_rate": 1e-5}, "SimCSE Table A.1"),
    "simcse_unsup_roberta": Preset(
        "simcse",
        ("*roberta-base*",),
        {"learning_rate": 1e-5, "batch_size": 512, "eval_examples": 64000},
        "SimCSE Table A.1",
    ),
    "simcse_unsup_roberta_large": Preset(
        "simcse", ("*roberta-large*",), {"batch_size": 512, "eval_examples": 64000}, "SimCSE Table A.1"
    ),
    "post_unsup": Preset("simcse", (), {**_POST, "loss_form": "nt_xent"}, "reproduction post (D04, D07)"),
    "simcse_sup": Preset("simcse_sup", ("*bert-base*", "*roberta-base*"), {}, "SimCSE Table A.1"),
    "simcse_sup_large": Preset("simcse_sup", ("*large*",), {"learning_rate": 1e-5}, "SimCSE Table A.1"),
    "post_sup": Preset(
        "simcse_sup",
        (),
        {**_POST, "head_at": "train_only", "batch_size": 64, "learning_rate": 3e-5},
        "reproduction post (D07)",
    ),
    "edacse_bert": Preset("edacse", ("*bert-base*",), {}, "EdaCSE Table 4"),
    "edacse_roberta": Preset("edacse", ("*roberta*",), {"lambda": 0.3, "max_marks": 2}, "EdaCSE Tables 4, 10, 15"),
    "edacse_roberta_large": Preset(
        "edacse",
        ("*roberta*large*",),
        {"learning_rate": 5e-6, "batch_size": 16, "eval_examples": 2000, "max_marks": 5},
        "EdaCSE Tables 4, 11, 15",
    ),
    "sda_bert": Preset("sda", ("*bert-base*",), {"augmentation": "pi"}, "SDA Table 3"),
    "sda_roberta": Preset(
        "sda",
        ("roberta-base*", "*/roberta-base*"),
        {"learning_rate": 1e-5, "batch_size": 64, "eval_examples": 16000},
        "SDA Table 3",
    ),
    "sda_chinese": Preset("sda", ("*chinese*", "*bert-base-chinese*"), {"learning_rate": 5e-5}, "SDA Table 9"),
    "selfccl_bert": Preset("selfccl", ("*bert*",), {}, "SelfCCL 5.5 (D36)"),
    "selfccl_sbert": Preset(
        "selfccl",
        (),
        {
            "pooling": "avg",
            "batch_size": 350,
            "learning_rate": 2e-5,
            "warmup_share": 0.1,
            "max_length": 75,
            "weight_decay": 0.01,
        },
        "SelfCCL 5.5 (D36)",
    ),
    "gclsr": Preset("gclsr", ("*",), {}, "GCLSR Sec. 4.1"),
    "gclsr_headline": Preset("gclsr", (), {"region_sizes": [1, 1, 1, 1, 1, 1]}, "GCLSR Table 2 (D49)"),
}


def preset_for(method: str, encoder: str) -> str | None:
    """The preset whose encoder patterns fit best (the longest matching pattern), or None."""
    fits = [
        (len(pattern), name)
        for name, preset in PRESETS.items()
        if preset.method == method
        for pattern in preset.encoders
        if fnmatch.fnmatch(encoder.lower(), pattern)
    ]
    return max(fits)[1] if fits else None
