"""GCLSR's hyperparameters, presets and needs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.contract.config import Conflicts, RunConfig, Unused, hyperparameter, unused_if
from trainables.contract.declaration import WORD_VECTORS, Declaration, Preset
from trainables.contract.errors import DataError

PAIR = ("sentence", "translation")  # columns of a file of back-translations
TEXTCNN_WIDTH = 4096  # projector output, cut into pieces of group_size (D48)


@dataclass(frozen=True, kw_only=True)
class GclsrConfig(RunConfig):
    """GCLSR (Appl. Sci. 2023, 13, 9873): TextCNN over word vectors, grouped loss without negatives."""

    batch_size: int = hyperparameter(512, "N, last partial batch dropped", low=2)
    sample_size: int | None = 10000  # 6.1
    epochs: int = 20
    eval_examples: int = 10000  # one epoch, D52
    group_size: int = hyperparameter(
        16, "values per piece of the 4096-wide vectors; 4096 = no groups (D48)", low=1, high=TEXTCNN_WIDTH
    )
    num_groups: int | None = hyperparameter(
        None, "pieces per vector; wins over group_size (D48)", kind="int", low=1, high=TEXTCNN_WIDTH
    )
    region_sizes: tuple[int, ...] = hyperparameter(
        (1, 1, 1, 6, 15, 20), "widths of the convolutions (Table 9, D49)", low=1, high=64
    )
    filters: int = hyperparameter(300, "F, filters per region size (D50)", low=1)
    base_lr: float = hyperparameter(0.03, "learning rate is base_lr * N / 128 (D51)", above=0)
    predictor_lr: float | None = hyperparameter(
        1.0,
        "constant rate of the predictor, null = same schedule as the rest (Table 6)",
        kind="float", above=0, optional=True,
    )  # fmt: skip
    weight_decay: float = hyperparameter(0.001, "SGD weight decay, all parameters, batch-norm included", low=0)
    momentum: float = hyperparameter(0.9, "Nesterov momentum during warm-up", low=0, below=1)
    momentum_after_warmup: float = hyperparameter(0.8, "Nesterov momentum after warm-up (Table 7)", low=0, below=1)
    warmup_epochs: int = hyperparameter(5, "epochs of linear warm-up from 0 (Table 8)", low=0)
    max_words: int = hyperparameter(64, "words per sentence at most", low=1, high=512)
    augmentation: str = hyperparameter(
        "partial", "PWVA mode: none, full (p = 1), partial (p)", choices=("none", "full", "partial")
    )
    pwva: str = hyperparameter("code", "formulas of the public code or of the paper (D42)", choices=("code", "paper"))
    pwva_p: float = hyperparameter(0.5, "probability that a word is augmented (D41)", low=0, high=1)
    p_gwn: float = hyperparameter(0.5, "probability of Gaussian white noise (D42)", low=0, high=1)
    p_rzs: float = hyperparameter(0.2, "probability of random zero setting", low=0, high=1)
    p_ifft: float = hyperparameter(0.1, "probability of the Fourier operation", low=0, high=1)
    p_rbn: float = hyperparameter(0.2, "probability of random background noise", low=0, high=1)
    sentence_augmentation: str = hyperparameter(
        "none",
        "how the second view's sentence is changed before its words are (Tables 2-3, D53)",
        choices=("none", "eda", "back_translation"),
    )
    eda_share: float = hyperparameter(
        0.1, "alpha of EDA, share of the words that an operation changes (D53)", above=0, below=1
    )
    back_translations: str | None = hyperparameter(
        None, "table with columns sentence and translation, for back_translation", kind="str"
    )
    self_attention: bool = hyperparameter(True, "attention in training (6.3)")
    attention_form: str = hyperparameter(
        "importance", "word importance, or the softmax attention of BERT (6.3, D53)", choices=("importance", "bert")
    )
    attention_at_eval: bool = hyperparameter(False, "apply it at evaluation too (D44)")
    projector_last_bn: bool = hyperparameter(True, "batch-norm after the last projector layer (D45)")
    oov: str = hyperparameter(
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
        if v["sentence_augmentation"] == "back_translation" and not v["back_translations"]:
            found.append(("back_translations", "back_translation needs a file of pairs, got none"))
        if v["attention_form"] == "bert" and not v["self_attention"]:
            found.append(("attention_form", "bert needs self_attention true, got false"))
        if v["attention_form"] == "bert" and v["attention_at_eval"]:
            found.append(("attention_form", "bert is for training only, got attention_at_eval true"))
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

    @staticmethod
    def saturation_values(v: Mapping[str, Any], examples: int) -> dict[str, float]:
        found = RunConfig.saturation_values(v, examples)
        del found["batch_size"]  # the learning rate grows with it
        return found

    @staticmethod
    def unused(v: Mapping[str, Any]) -> Unused:
        found = unused_if(v, "augmentation", "full", "pwva_p")
        found |= unused_if(v, "augmentation", "none", "pwva_p", "pwva", "p_gwn", "p_rzs", "p_ifft", "p_rbn")
        if v["num_groups"] is not None:
            found["group_size"] = ("num_groups", v["num_groups"])
        if v["sentence_augmentation"] != "eda":
            found["eda_share"] = ("sentence_augmentation", v["sentence_augmentation"])
        if v["sentence_augmentation"] != "back_translation":
            found["back_translations"] = ("sentence_augmentation", v["sentence_augmentation"])
        return found | unused_if(v, "self_attention", False, "attention_at_eval")


def back_translations(path: str) -> Mapping[str, str]:
    """Sentence -> its translation into another language and back, from a table with columns sentence and translation.

    Raises: DataError naming the file.
    """
    from trainables.data.tables import read_table

    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"params.back_translations: no such file: {path}")

    def columns(header: Sequence[str]) -> dict[str, str]:
        if missing := [name for name in PAIR if name not in header]:
            raise DataError(f"{file}: expected columns {' and '.join(PAIR)}, got no {missing[0]}")
        return {name: name for name in PAIR}

    table = read_table(file, columns).columns
    return dict(zip(table["sentence"], table["translation"], strict=True))


def check_sentences(spec: Mapping[str, Any]) -> None:
    """Preflight: WordNet or the file of back-translations exists, if needed. Raises: DataError."""
    from trainables.methods.sda.edits import wordnet

    params = spec["params"]
    if params.get("sentence_augmentation") == "eda":
        wordnet(spec["data"]["language"])
    if params.get("sentence_augmentation") == "back_translation" and (path := params.get("back_translations")):
        back_translations(path)


GCLSR = Declaration(
    name="gclsr",
    paper="Grouped Contrastive Learning of Self-Supervised Sentence Representation, doi:10.3390/app13179873",
    config=GclsrConfig,
    columns="sentences",
    encoders=WORD_VECTORS,
    languages=("en", "zh"),  # how a text is split into words
    code="trainables.methods.gclsr.method:METHOD",
    preflight=check_sentences,
    # Projector and predictor (45 million weights whatever the space sets) take some 0.5 s a step on two cores; the
    # schedule runs over epochs, so that all of it fits.
    usage='from gclsr_loader import Model\n\nvectors = Model(".").encode(["a sentence"])',
    smoke={"max_examples": 256, "eval_examples": 128, "sample_size": 64},
    presets={
        "gclsr": Preset(("*",), {}, "GCLSR Sec. 4.1"),
        "gclsr_headline": Preset((), {"region_sizes": [1, 1, 1, 1, 1, 1]}, "GCLSR Table 2 (D49)"),
    },
)
