"""SelfCCL's hyperparameters, presets and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import Conflicts, EncoderConfig, Unused, hyperparameter, unused_if
from trainables.contract.declaration import Declaration, Preset, named


@dataclass(frozen=True, kw_only=True)
class SelfcclConfig(EncoderConfig):
    """SelfCCL (Appl. Sci. 2023, 13, 1913): curriculum over NLI triplets scored by the untouched encoder."""

    batch_size: int = 512
    learning_rate: float = 5e-5  # D36
    epochs: int = hyperparameter(4, "T of the pacing function", low=1)
    pooling: str = "avg_first_last"  # in scoring and in training (D31)
    head: str = "none"
    eval_examples: int = 64000  # 125 steps of 512
    margin: float = hyperparameter(0.2, "m of the easy / semi-hard border (5.2)", low=0, high=2)
    order: str = hyperparameter(
        "ascending", "curriculum, anti-curriculum, fixed random", choices=("ascending", "descending", "random")
    )
    pacing_exponent: float = hyperparameter(1.0, "lambda of g(t): 0.5 root, 1 linear, 2 quadratic (5.3)", above=0)
    pacing_unit: str = hyperparameter("epoch", "what t counts (D34)", choices=("epoch", "step"))
    pacing: bool = hyperparameter(True, "false: every epoch sees all triplets (equal-step control, D35)")
    equal_steps: bool = hyperparameter(False, "train exactly epochs * floor(k/N) steps whatever the pacing (D35)")

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        found = list(EncoderConfig.conflicts(v))
        if v["sets"] != "joined":
            found.append(("sets", f"expected joined, got {v['sets']}: the curriculum orders the triplets of all sets"))
        return found

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = dict(EncoderConfig.unused(v)) | unused_if(v, "pacing", False, "pacing_exponent")
        return found | unused_if(v, "pacing_unit", "step", "equal_steps")


SELFCCL = Declaration(
    name="selfccl",
    paper="SelfCCL: Curriculum Contrastive Learning by "
    "Transferring Self-Taught Knowledge for Fine-Tuning BERT, doi:10.3390/app13031913",
    config=SelfcclConfig,
    columns="triplets",
    code="trainables.methods.selfccl.method:METHOD",
    smoke={"sample_size": 800},  # its curriculum runs over epochs: all of it fits (four epochs are 2.5 passes, D35)
    presets={
        "selfccl_bert": Preset(named("bert-base-"), {}, "SelfCCL 5.5 (D36)"),
        "selfccl_sbert": Preset(
            (),
            {
                "pooling": "avg",
                "batch_size": 350,
                "learning_rate": 2e-5,
                "warmup_share": 0.1,
                "max_length": 75,
                "weight_decay": 0.01,
                "eval_examples": 27560,  # 10 % of an epoch
            },
            "SelfCCL 5.5 (D36)",
        ),
    },
)
