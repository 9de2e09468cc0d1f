"""SimCSE's hyperparameters, presets and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import EncoderConfig, Unused, hyperparameter, unused_if
from trainables.contract.declaration import Declaration, Preset, named


@dataclass(frozen=True, kw_only=True)
class SimcseConfig(EncoderConfig):
    """Unsupervised SimCSE (arXiv:2104.08821, Sec. 3)."""

    loss_form: str = hyperparameter(
        "one_way", "N x N one-way, or symmetric NT-Xent (D04)", choices=("one_way", "nt_xent")
    )
    same_mask: bool = hyperparameter(False, "both views under one dropout mask: no augmentation at all (Table 3)")


@dataclass(frozen=True, kw_only=True)
class SimcseSupConfig(EncoderConfig):
    """Supervised SimCSE (arXiv:2104.08821, Sec. 4) on NLI triplets."""

    batch_size: int = 512
    learning_rate: float = 5e-5
    epochs: int = 3
    eval_examples: int = 64000  # 125 steps of 512
    head_at: str = "train_and_test"
    hard_negative_weight: float = hyperparameter(0.0, "w = ln alpha, added to the own negative's logit (1.5)")
    loss_form: str = hyperparameter(
        "hard",
        "hard: anchors against 2N; both_rows: positives as rows too (2.2); in_batch: no hard negatives (Table 7)",
        choices=("hard", "both_rows", "in_batch"),
    )

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = dict(EncoderConfig.unused(v))
        for form in ("both_rows", "in_batch"):
            found |= unused_if(v, "loss_form", form, "hard_negative_weight")
        return found


_POST = {
    "pooling": "cls_before_pooler", "head": "none", "weight_decay": 0.01, "lr_decay": "constant", "max_grad_norm": 0.0,
    "epochs": 2, "eval_steps": 100, "max_length": 64, "precision": "fp32",
}  # fmt: skip  # D07

_PAPER = "SimCSE: Simple Contrastive Learning of Sentence Embeddings, arXiv:2104.08821"

SIMCSE = Declaration(
    name="simcse",
    paper=_PAPER,
    config=SimcseConfig,
    columns="sentences",
    code="trainables.methods.simcse.method:UNSUPERVISED",
    presets={
        "simcse_unsup": Preset(named("bert-base-"), {}, "SimCSE Table A.1, BERT-base"),
        "simcse_unsup_large": Preset(named("bert-large-"), {"learning_rate": 1e-5}, "SimCSE Table A.1"),
        "simcse_unsup_roberta": Preset(
            named("roberta-base"),
            {"learning_rate": 1e-5, "batch_size": 512, "eval_examples": 64000},
            "SimCSE Table A.1",
        ),
        "simcse_unsup_roberta_large": Preset(
            named("roberta-large"), {"batch_size": 512, "eval_examples": 64000}, "SimCSE Table A.1"
        ),
        "post_unsup": Preset((), {**_POST, "loss_form": "nt_xent"}, "reproduction post (D04, D07)"),
    },
)
SIMCSE_SUP = Declaration(
    name="simcse_sup",
    paper=_PAPER,
    config=SimcseSupConfig,
    columns="triplets",
    code="trainables.methods.simcse.method:SUPERVISED",
    presets={
        "simcse_sup": Preset(named("bert-base-", "roberta-base"), {}, "SimCSE Table A.1"),
        "simcse_sup_large": Preset(named("bert-large-", "roberta-large"), {"learning_rate": 1e-5}, "SimCSE Table A.1"),
        "post_sup": Preset(
            (),
            {**_POST, "head_at": "train_only", "batch_size": 64, "learning_rate": 3e-5},
            "reproduction post (D07)",
        ),
    },
)
