"""The baselines' hyperparameters, presets and needs. Standard library only.

Where a default is none of the paper's or of its authors' code, its line marks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainables.contract.config import POOLINGS, Conflicts, EncoderConfig, RunConfig, Unused, hyperparameter, unused_if
from trainables.contract.declaration import Declaration, Preset, named
from trainables.methods.sda.config import check_parser

CONSERT_VIEWS = ("none", "shuffle", "token_cutoff", "feature_cutoff")


@dataclass(frozen=True, kw_only=True)
class WhiteningConfig(RunConfig):
    """Whitening (arXiv:2103.15316): nothing is trained, so no rate, dropout or temperature."""

    pooling: str = hyperparameter("avg_first_last", "sentence vector from hidden states (D01, D02)", choices=POOLINGS)
    include_prompt: bool = hyperparameter(True, "of mean poolings: whether the tokens of the prompt count")
    max_length: int = hyperparameter(64, "tokens at most per sentence that whitening learns from (ours)", low=4)
    eval_max_length: int | None = hyperparameter(
        None, "tokens per text at most in evaluations, null = what the encoder was trained on", kind="int", low=4
    )
    dimensions: int | None = hyperparameter(None, "k, leading directions used; null = all", kind="int", low=1)

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        return {} if v["pooling"].startswith("avg") else {"include_prompt": ("pooling", v["pooling"])}


@dataclass(frozen=True, kw_only=True)
class ConsertConfig(EncoderConfig):
    """ConSERT (arXiv:2105.11741): two views that differ in order, tokens or features."""

    learning_rate: float = 5e-7
    batch_size: int = 96
    epochs: int = 10
    dropout: float = 0.0
    temperature: float = 0.1
    pooling: str = "avg"
    head: str = "none"
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    max_length: int = 64
    first_view: str = hyperparameter("feature_cutoff", "how the anchor is changed (Sec. 3.2)", choices=CONSERT_VIEWS)
    second_view: str = hyperparameter("shuffle", "how the positive is changed (Sec. 3.2)", choices=CONSERT_VIEWS)
    token_cutoff: float = hyperparameter(0.15, "share of a sentence's tokens set to zero", low=0, below=1)
    feature_cutoff: float = hyperparameter(0.2, "share of the embedding's features set to zero", low=0, below=1)

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = dict(EncoderConfig.unused(v))
        views = v["first_view"], v["second_view"]
        cutoffs = [name for name in ("token_cutoff", "feature_cutoff") if name not in views]
        return found | dict.fromkeys(cutoffs, ("first_view", v["first_view"]))


@dataclass(frozen=True, kw_only=True)
class EsimcseConfig(EncoderConfig):
    """ESimCSE (arXiv:2109.04380): repeated words in the positive, a momentum encoder's queue as more negatives."""

    repetition: float = hyperparameter(
        0.32, "dup_rate: most of a sentence's tokens that are repeated (Sec. 3.1)", low=0, high=1
    )
    queue_batches: float = hyperparameter(2.5, "queue length in batches, 0 = no queue (Sec. 3.2)", low=0)
    momentum: float = hyperparameter(0.995, "of the momentum encoder (Sec. 3.2)", low=0, below=1)

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        return dict(EncoderConfig.unused(v)) | unused_if(v, "queue_batches", 0, "momentum")

    @staticmethod
    def saturation_values(v: Mapping[str, Any], examples: int) -> dict[str, float]:
        found = EncoderConfig.saturation_values(v, examples)
        if v["queue_batches"]:
            del found["batch_size"]  # the queue grows with it
        return found | {"queue_batches": v["epochs"] * examples / v["batch_size"]}


@dataclass(frozen=True, kw_only=True)
class MirrorBertConfig(EncoderConfig):
    """Mirror-BERT (arXiv:2104.08027): a masked span in the positive, few sentences."""

    learning_rate: float = 2e-5
    batch_size: int = 200
    sample_size: int | None = 10000
    eval_examples: int = 2000  # ours
    temperature: float = 0.04
    pooling: str = "avg"
    head: str = "none"
    max_length: int = 50
    span: int = hyperparameter(5, "k, neighbouring characters masked together, 0 = none (Sec. 2.1)", low=0, high=64)
    shortest: int = hyperparameter(30, "characters below which a sentence stays whole (the authors' code)", low=1)

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        return dict(EncoderConfig.unused(v)) | unused_if(v, "span", 0, "shortest")


@dataclass(frozen=True, kw_only=True)
class ArccseConfig(EncoderConfig):
    """ArcCSE (arXiv:2203.06875): an angular margin on the positive, and a triplet of ever more masked sentences."""

    margin_degrees: float = hyperparameter(10.0, "m, added to the positive's angle (Eq. 4)", low=0, below=90)
    triplet_weight: float = hyperparameter(0.1, "lambda of the triplet term, 0 = off (Eq. 6)", low=0)
    triplet_margin: float = hyperparameter(0.0, "m of the triplet term, in cosine (Eq. 5)", low=0, high=2)
    masked: float = hyperparameter(0.2, "share masked in the nearer sentence", low=0, high=0.5)
    masked_more: float = hyperparameter(
        0.4, "share masked in the farther one, the nearer one's included", low=0, high=0.9
    )

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        found = list(EncoderConfig.conflicts(v))
        if v["masked_more"] < v["masked"]:
            found.append(("masked_more", f"expected at least masked {v['masked']}, got {v['masked_more']}"))
        return found

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        return dict(EncoderConfig.unused(v)) | unused_if(
            v, "triplet_weight", 0, "triplet_margin", "masked", "masked_more"
        )


@dataclass(frozen=True, kw_only=True)
class SncseConfig(EncoderConfig):
    """SNCSE (arXiv:2201.05979): the negated sentence as soft negative, held in a band below the positive."""

    learning_rate: float = 1e-5
    batch_size: int = 256
    eval_examples: int = 32000  # 125 steps of 256
    alpha: float = hyperparameter(
        0.1, "least lead of the positive over the soft negative, in cosine (Eq. 3)", low=0, high=2
    )
    beta: float = hyperparameter(0.3, "largest lead without cost, in cosine (Eq. 3)", low=0, high=2)
    soft_weight: float = hyperparameter(0.001, "lambda of the bidirectional margin loss (Eq. 4)", low=0)
    rule_set: str = hyperparameter("fixed", "of the negation NEG (D22)", choices=("official", "fixed", "paper"))

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        found = list(EncoderConfig.conflicts(v))
        if v["beta"] < v["alpha"]:
            found.append(("beta", f"expected at least alpha {v['alpha']}, got {v['beta']}"))
        return found

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        return dict(EncoderConfig.unused(v)) | unused_if(v, "soft_weight", 0, "alpha", "beta")


@dataclass(frozen=True, kw_only=True)
class DiffcseConfig(EncoderConfig):
    """DiffCSE (arXiv:2204.10298): SimCSE, and a discriminator that finds replaced tokens by the sentence vector."""

    learning_rate: float = 7e-6
    head: str = "mlp_bn"
    mask_share: float = hyperparameter(0.3, "share of tokens that the generator fills in", above=0, below=1)
    difference_weight: float = hyperparameter(0.005, "lambda of replaced-token detection (Eq. 4)", low=0)

    @staticmethod
    def conflicts(v: Mapping[str, Any]) -> Conflicts:
        found = list(EncoderConfig.conflicts(v))
        if v["micro_batch"] and v["difference_weight"]:
            found.append(("micro_batch", "does not go with difference_weight: its term is over the whole batch"))
        return found

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        return dict(EncoderConfig.unused(v)) | unused_if(v, "difference_weight", 0, "mask_share")


_PAPERS = {
    "whitening": "Whitening Sentence Representations for Better Semantics and Faster Retrieval, arXiv:2103.15316",
    "consert": "ConSERT: A Contrastive Framework for Self-Supervised Sentence Representation Transfer, "
    "arXiv:2105.11741",
    "esimcse": "ESimCSE: Enhanced Sample Building Method for Contrastive Learning of Unsupervised Sentence Embedding, "
    "arXiv:2109.04380",
    "mirror_bert": "Fast, Effective, and Self-Supervised: Transforming Masked Language Models into Universal Lexical "
    "and Sentence Encoders, arXiv:2104.08027",
    "arccse": "A Contrastive Framework for Learning Sentence Representations from Pairwise and Triple-wise Perspective "
    "in Angular Space, arXiv:2203.06875",
    "sncse": "SNCSE: Contrastive Learning for Unsupervised Sentence Embedding with Soft Negative Samples, "
    "arXiv:2201.05979",
    "diffcse": "DiffCSE: Difference-based Contrastive Learning for Sentence Embeddings, arXiv:2204.10298",
}


def _declaration(name: str, config: type[RunConfig], presets: Mapping[str, Preset], **more: Any) -> Declaration:
    code = f"trainables.methods.baselines.{name}:METHOD"
    return Declaration(name=name, config=config, code=code, presets=presets, paper=_PAPERS[name], **more)


_BERT = named("bert-base-")
_ROBERTA = named("roberta-base")

WHITENING = _declaration("whitening", WhiteningConfig, {"whitening": Preset(("*",), {}, "whitening, first-last avg")})
CONSERT = _declaration("consert", ConsertConfig, {"consert": Preset(_BERT, {}, "ConSERT's script, unsupervised base")})
ESIMCSE = _declaration("esimcse", EsimcseConfig, {
    "esimcse": Preset(_BERT, {}, "ESimCSE's script, BERT-base"),
    "esimcse_roberta": Preset(_ROBERTA, {"learning_rate": 1e-5, "repetition": 0.3}, "ESimCSE's script, RoBERTa-base"),
})  # fmt: skip
MIRROR_BERT = _declaration(
    "mirror_bert", MirrorBertConfig, {"mirror_bert": Preset(_BERT, {}, "Mirror-BERT's script, sentences")}
)
ARCCSE = _declaration("arccse", ArccseConfig, {"arccse": Preset(_BERT, {}, "ArcCSE Sec. 4.1; SimCSE's rate and batch")})
SNCSE = _declaration("sncse", SncseConfig, {
    "sncse": Preset(_BERT, {}, "SNCSE's script, BERT-base"),
    "sncse_roberta": Preset(_ROBERTA, {"soft_weight": 5e-4}, "SNCSE's script, RoBERTa-base"),
}, parser=True, languages=("en", "zh"), preflight=check_parser)  # fmt: skip
DIFFCSE = _declaration("diffcse", DiffcseConfig, {
    "diffcse": Preset(_BERT, {}, "DiffCSE's script, BERT-base"),
    "diffcse_roberta": Preset(_ROBERTA, {"learning_rate": 1e-5, "mask_share": 0.2}, "DiffCSE App., RoBERTa-base"),
})  # fmt: skip
