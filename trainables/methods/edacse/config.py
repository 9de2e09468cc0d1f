"""EdaCSE's hyperparameters, presets and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import EncoderConfig, Unused, hyperparameter, unused_if
from trainables.contract.declaration import Declaration, Preset, named

ALPHABETS: Mapping[str, str] = {
    "english": ".,!?;:",
    "chinese": "。，！？；：",
    "chinese_without_strong": "。，；：",
    "english_without_strong": ".,;:",
    "english_extended": ".,!?;:[]~|",  # the paper's list ends with "etc." (D12)
}


@dataclass(frozen=True, kw_only=True)
class EdacseConfig(EncoderConfig):
    """EdaCSE (Appl. Sci. 2023, 13, 10120): a second InfoNCE term with inserted punctuation."""

    batch_size: int = 32
    weight_decay: float = 0.01
    lr_decay: str = "cosine"
    max_length: int = 64  # D15
    sample_size: int | None = 10000  # D14
    eval_examples: int = 4000  # 125 steps of 32
    lambda_: float = hyperparameter(0.6, "weight of the augmented term (Table 15)", name="lambda", low=0)
    max_marks: int = hyperparameter(
        3, "at most this many marks inserted, 0 = plain SimCSE (Tables 9-11)", low=0, high=7
    )
    alphabet: str = hyperparameter("english", "marks to draw from (Tables 12-14, D12)", choices=tuple(ALPHABETS))
    unit: str = hyperparameter("character", "what a gap lies between (D10)", choices=("character", "word"))

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = dict(EncoderConfig.unused(v)) | unused_if(v, "max_marks", 0, "lambda", "alphabet", "unit")
        return found | unused_if(v, "lambda", 0, "max_marks", "alphabet", "unit")


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
