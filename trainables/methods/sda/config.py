"""SDA's hyperparameters, presets and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import EncoderConfig, Unused, hyperparameter, unused_if
from trainables.contract.declaration import Declaration, Preset, named
from trainables.contract.errors import DataError

EDITS = ("pi", "mv", "dn", "ensemble")
COMPARISON_EDITS = (
    "crop_10", "crop_20", "crop_30", "delete_10", "delete_20", "delete_30", "synonym", "mask", "repeat",
    "random_punctuation",
)  # fmt: skip  # SDA Tables 8-9


@dataclass(frozen=True, kw_only=True)
class SdaConfig(EncoderConfig):
    """SDA (arXiv:2210.03963): a minimal syntactic edit is the positive, its negation a relaxed negative."""

    learning_rate: float = 2e-5
    batch_size: int = 128
    head: str = "mlp_bn"  # D20
    eval_examples: int = 32000  # 250 steps of 128
    augmentation: str = hyperparameter(
        "mv", "the edit (Table 3; comparison edits: Tables 8-9)", choices=EDITS + COMPARISON_EDITS
    )
    rule_set: str = hyperparameter(
        "official",
        "the public code as it is, repaired, or the rules as printed (D22, D38)",
        choices=("official", "fixed", "paper"),
    )
    negation_negative: bool = hyperparameter(True, "add the negated sentence as own hard negative (Table 6)")
    negation_scope: str = hyperparameter("own", "negation negatives seen by an anchor (D24)", choices=("own", "all"))
    delta: float = hyperparameter(0.5, "margin subtracted from the negation's cosine (4.4, D26)", low=0, high=1)
    augmentation_share: float = hyperparameter(
        1.0, "share of sentences paired with their edit, rest with itself (D27)", low=0, high=1
    )

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = dict(EncoderConfig.unused(v))
        return found | unused_if(v, "negation_negative", False, "negation_scope", "delta")


def check_parser(spec: Mapping[str, Any]) -> None:
    """Pre-flight: the parser is there, and the rules are of the language. Raises: ParserError, DataError."""
    from trainables.data.parses import parser_identity

    language = spec["data"]["language"]
    if spec["params"].get("rule_set") == "paper" and language != "en":
        raise DataError(
            f"params.rule_set: paper has English rules only, data.language is {language}; use official or fixed"
        )
    parser_identity(spec["data"].get("parser"), language)


SDA = Declaration(
    name="sda",
    paper="SDA: Simple Discrete Augmentation for Contrastive Sentence Representation Learning, arXiv:2210.03963",
    config=SdaConfig,
    columns="sentences",
    code="trainables.methods.sda.method:METHOD",
    parser=True,
    languages=("en", "zh"),
    preflight=check_parser,
    transfer_pooling="avg_top2",  # D29; the other methods use one pooling for everything
    presets={
        "sda_bert": Preset(named("bert-base-"), {"augmentation": "pi"}, "SDA Table 3"),
        "sda_roberta": Preset(
            named("roberta-base"),
            {"learning_rate": 1e-5, "batch_size": 64, "eval_examples": 16000},
            "SDA Table 3",
        ),
        "sda_chinese": Preset(
            named("chinese-roberta-wwm-ext", "bert-base-chinese"), {"learning_rate": 5e-5}, "SDA Table 3"
        ),
    },
)
