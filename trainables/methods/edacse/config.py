"""EdaCSE's hyperparameters, presets and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import EncoderConfig, idle_under
from trainables.contract.declaration import Declaration, Preset, named
from trainables.contract.knobs import Idle, knob

ALPHABETS = ("english", "chinese", "chinese_without_strong", "english_without_strong", "english_extended")


@dataclass(frozen=True, kw_only=True)
class EdacseConfig(EncoderConfig):
    """EdaCSE (Appl. Sci. 2023, 13, 10120): a second InfoNCE term with inserted punctuation."""

    batch_size: int = knob(32, "N, sentences per optimiser step, over all workers", low=2)
    weight_decay: float = knob(0.01, "AdamW weight decay", low=0)
    lr_decay: str = knob("cosine", "shape after warm-up", choices=("linear", "cosine", "constant"))
    max_length: int = knob(64, "tokens kept per sentence, special tokens included (D15)", low=4)
    sample_size: int | None = knob(10000, "sentences drawn once per run (D14)", kind="int", low=2, optional=True)
    eval_examples: int = knob(4000, "training examples between two evaluations (125 steps of 32)", low=1)
    lambda_: float = knob(0.6, "weight of the augmented term (Table 15)", name="lambda", low=0)
    max_marks: int = knob(3, "at most this many marks inserted, 0 = plain SimCSE (Tables 9-11)", low=0, high=7)
    alphabet: str = knob("english", "marks to draw from (Tables 12-14, D12)", choices=ALPHABETS)
    unit: str = knob("character", "what a gap lies between (D10)", choices=("character", "word"))

    @staticmethod
    def idle(v: Mapping[str, Any]) -> Idle:
        found = dict(EncoderConfig.idle(v)) | idle_under(v, "max_marks", 0, "lambda", "alphabet", "unit")
        return found | idle_under(v, "lambda", 0, "max_marks", "alphabet", "unit")


EDACSE = Declaration(
    name="edacse",
    paper="EdaCSE, doi:10.3390/app131810120",
    config=EdacseConfig,
    columns="sentences",
    code="trainables.methods.edacse.method:METHOD",
    presets={
        "edacse_bert": Preset(named("bert-base-"), {}, "EdaCSE Table 4"),
        "edacse_roberta": Preset(
            named("chinese-roberta-wwm-ext"), {"lambda": 0.3, "max_marks": 2}, "EdaCSE Tables 4, 10, 15"
        ),
        "edacse_roberta_large": Preset(
            named("chinese-roberta-wwm-ext-large"),
            {"learning_rate": 5e-6, "batch_size": 16, "eval_examples": 2000, "max_marks": 5},
            "EdaCSE Tables 4, 11, 15",
        ),
    },
)
