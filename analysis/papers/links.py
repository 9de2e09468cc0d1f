"""Which space of ours runs which rows of which published table. D-numbers are decisions of the method specification."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from analysis.papers.rows import (
    DEV,
    FOUR,
    STS,
    TRANSFER,
    ZH,
    Entry,
    PaperRow,
    Reader,
    across,
    by_name,
    by_post,
    by_value,
    wanted,
)


@dataclass(frozen=True)
class Link:
    """A published table and the space that runs rows of it; parameter: searched along the rows, None if several are."""

    space: str
    source: str
    table: str
    reader: Reader
    parameter: str | None


_MODELS = {"bert": "bert-base", "roberta": "roberta-base", "roberta_large": "roberta-large"}
_MARKS = {"bert": 3, "roberta": 2, "roberta_large": 5}
_ALPHABETS = ("chinese", "chinese_without_strong", "english_without_strong", "english_extended")
_SDA_EDITS = {"PI": "pi", "MV": "mv", "DN": "dn", "Ensemble": "ensemble"}
_SDA_ROWS = {name: {"augmentation": edit, "delta": 0.5} for name, edit in _SDA_EDITS.items()}
_DN_BY_TEXT = {"delta": 0.3}  # D26
_PLAIN = {"augmentation_share": 0.0}
_SDA_8_EDITS = {
    "cropping 10": {"augmentation": "crop_10"},
    "cropping 20": {"augmentation": "crop_20"},
    "cropping 30": {"augmentation": "crop_30"},
    "word deletion 10": {"augmentation": "delete_10"},
    "word deletion 20": {"augmentation": "delete_20"},
    "word deletion 30": {"augmentation": "delete_30"},
    "synonym replacement": {"augmentation": "synonym"},
    "mask": {"augmentation": "mask"},
    "word repetition": {"augmentation": "repeat"},
    **{name: {"augmentation": _SDA_EDITS[name]} for name in ("PI", "MV", "DN")},
}
_SDA_8 = {"none (unsup SimCSE)": _PLAIN} | {n: p | {"augmentation_share": 1.0} for n, p in _SDA_8_EDITS.items()}
_POOLINGS = {
    "cls with head": {"pooling": "cls", "head_at": "train_and_test"},
    "cls, head in training only": {"pooling": "cls", "head_at": "train_only"},
    "cls without head": {"pooling": "cls_before_pooler"},
    "first-last average": {"pooling": "avg_first_last"},
}
_GCLSR_2 = {
    "GCLSR-base": {"augmentation": "none", "self_attention": False, "group_size": 4096},
    "GCLSR-base+EDA": {"sentence_augmentation": "eda", "self_attention": False, "group_size": 4096},
    "GCLSR-base+TransL": {"sentence_augmentation": "back_translation", "self_attention": False, "group_size": 4096},
    "GCLSR-base+PWVA": {"augmentation": "partial", "self_attention": False, "group_size": 4096},
    "GCLSR-base+PWVA+self-att": {"augmentation": "partial", "self_attention": True, "group_size": 4096},
    "GCLSR-base+EDA+self-att+GP": {"sentence_augmentation": "eda", "self_attention": True, "group_size": 16},
    "GCLSR-base+TransL+self-att+GP": {
        "sentence_augmentation": "back_translation",
        "self_attention": True,
        "group_size": 16,
    },
    "GCLSR-base+PWVA+self-att+GP": {"augmentation": "partial", "self_attention": True, "group_size": 16},
}
_GCLSR_2 = {name: {"augmentation": "none", "sentence_augmentation": "none"} | row for name, row in _GCLSR_2.items()}
_MOMENTA = {
    str(m): {"momentum": m, "momentum_after_warmup": m} for m in (0.8, 0.9, 0.99)
} | {"0.9 then 0.8": {"momentum": 0.9, "momentum_after_warmup": 0.8}}  # fmt: skip


def _regions(entry: Entry) -> list[PaperRow]:
    values = {row[0]: [int(size) for size in row[0].split(",")] for row in entry["rows"]}
    return by_value(entry, "region_sizes", FOUR, values)


def _links() -> dict[str, Link]:
    """Name, usually the space's, -> link."""
    found: dict[str, Link] = {}

    def link(
        name: str,
        source: str,
        table: str,
        reader: Any,
        parameter: str | None = None,
        /,
        space: str = "",
        **options: Any,
    ) -> None:
        if reader in (by_value, across):
            options["parameter"] = parameter
        found[name] = Link(space or name, source, table, partial(reader, **options), parameter)

    for i, model in enumerate(_MODELS):
        marks, name = _MARKS[model], _MODELS[model]
        link(f"edacse_table{5 + i:02}_{model}", "edacse", f"table_{5 + i}", by_value, "sample_size",
             columns=ZH, values={17544: 175460})  # fmt: skip  # D14
        link(f"edacse_table08_{model}", "edacse", "table_8", by_name,
             columns=ZH, rows={name: {"max_marks": 0}, f"{name} + EdaCSE": {"max_marks": marks}})  # fmt: skip
        link(f"edacse_table{9 + i:02}_{model}", "edacse", f"table_{9 + i}", by_value, "max_marks", columns=ZH)
        alphabets = {a: {"max_marks": marks, "alphabet": a} for a in _ALPHABETS}
        alphabets |= {
            "no_operation": {"max_marks": 0},
            "edacse_english": {"max_marks": marks, "alphabet": "english"},
        }
        link(f"edacse_table{12 + i}_{model}", "edacse", f"table_{12 + i}", by_name, columns=ZH, rows=alphabets)
        link(f"edacse_table15_{model}", "edacse", "table_15", across, "lambda", name=name, metric="avg_test")
    for kind in ("bert", "sbert"):
        row = f"SelfCCL-{kind.upper()}base"
        bert = {"bert": "BERTbase (first-last avg.)", "sbert": ""}[kind]  # as the space pools, before training
        mean = {"bert": "", "sbert": "Avg. BERT embedding"}[kind]
        link(f"selfccl_{kind}", "selfccl", "table_4", by_name, columns=STS, rows={row: {}}, untrained={bert: {}})
        link(f"selfccl_table05_{kind}", "selfccl", "table_5", by_name, space=f"selfccl_{kind}",
             columns=TRANSFER, rows={row: {}}, untrained={mean: {}})  # fmt: skip
    link("selfccl_nli_v2", "selfccl", "table_4", by_name, columns=STS, rows={"SBERTbase-nli-v2": {}})
    link("selfccl_table05_nli_v2", "selfccl", "table_5", by_name, space="selfccl_nli_v2",
         columns=TRANSFER, rows={"SBERTbase-nli-v2": {}})  # fmt: skip
    for model in ("BERT", "RoBERTa"):
        rows: dict[str, Mapping[str, Any]] = {f"{model} {p}": edit for p, edit in _SDA_ROWS.items()}
        for rule_set in ("", "_paper"):
            link(f"sda_table04_{model.lower()}{rule_set}", "sda", "table_4", by_name, columns=STS, rows=rows,
                 variants={f"{model} DN": _DN_BY_TEXT})  # fmt: skip
    link("sda_table05_roberta", "sda", "table_5", by_name, space="sda_table04_roberta",
         columns=TRANSFER, rows=_SDA_ROWS, variants={"DN": _DN_BY_TEXT})  # fmt: skip
    link("sda_table06_roberta", "sda", "table_6", by_name, columns=STS, rows={
        "SimCSE-RoBERTa-base": {"augmentation_share": 0.0, "negation_negative": False},
        "MV": {"augmentation_share": 1.0, "negation_negative": True},
        "MV without negation negative": {"augmentation_share": 1.0, "negation_negative": False},
        "MV without positive augmentation": {"augmentation_share": 0.0, "negation_negative": True},
    })  # fmt: skip
    edits = {n: {"augmentation_share": 1.0, **_SDA_ROWS[n]} for n in ("PI", "MV", "DN")}
    link("sda_table07_zh", "sda", "table_7", by_name, columns=wanted("STS-B-zh"),
         rows={"SimCSE-RoBERTa-base": _PLAIN, **edits}, untrained={"Roberta-base (last CLS)": {}},
         variants={"DN": _DN_BY_TEXT})  # fmt: skip
    link("sda_table08_bert", "sda", "table_8", by_name, columns=DEV, rows=_SDA_8)
    link("sda_table09_roberta", "sda", "table_9", by_name, columns=wanted("avg_STS"), rows={
        "none (unsup SimCSE)": _PLAIN,
        "random insertion": {"augmentation_share": 1.0, "augmentation": "random_punctuation"},
        "PI": {"augmentation_share": 1.0, "augmentation": "pi"},
    })  # fmt: skip
    link("gclsr_table02", "gclsr", "table_2", by_name, columns=STS, rows=_GCLSR_2,
         untrained={"word2vec avg": {}})  # fmt: skip
    link("gclsr_table03", "gclsr", "table_3", by_name, space="gclsr_table02", columns=TRANSFER, rows=_GCLSR_2,
         untrained={"word2vec avg": {}})  # fmt: skip
    link("gclsr_table04", "gclsr", "table_4", by_value, "batch_size", columns=FOUR)
    link("gclsr_table05", "gclsr", "table_5", by_value, "weight_decay", columns=FOUR)
    link("gclsr_table06", "gclsr", "table_6", by_value, "predictor_lr", columns=FOUR, values={"decay": None})
    link("gclsr_table07", "gclsr", "table_7", by_name, columns=FOUR, rows=_MOMENTA)
    link("gclsr_table08", "gclsr", "table_8", by_value, "warmup_epochs", columns=FOUR)
    link("gclsr_table09", "gclsr", "table_9", _regions, "region_sizes")
    link("gclsr_table10", "gclsr", "table_10", by_value, "augmentation", columns=FOUR)
    link("gclsr_table11", "gclsr", "table_11", by_value, "group_size", columns=FOUR, values={"no grouping": 4096})
    for name, source, table, space, row, pooling in (  # encoders before training: `analysis test --untrained`
        ("gclsr_table02_bert", "gclsr", "table_2", "selfccl_bert", "BERT-base (first-last avg.)", {}),
        ("gclsr_table03_bert", "gclsr", "table_3", "selfccl_bert", "BERT-base (first-last avg.)", {}),
        ("selfccl_table05_cls", "selfccl", "table_5", "simcse_table06_pooling_unsup", "BERT-[CLS] embedding",
         {"pooling": "cls_before_pooler"}),
    ):  # fmt: skip
        columns = STS if table == "table_2" else TRANSFER
        link(name, source, table, by_name, space=space, columns=columns, rows={}, untrained={row: pooling})
    paper = "simcse_paper_reference"
    link("simcse_headline_bert", "sda", "table_4", by_name, space="simcse_unsup_bert",
         columns=STS, rows={"SimCSE-BERT-base": {}})  # fmt: skip
    link("simcse_headline_roberta", "sda", "table_4", by_name, space="simcse_unsup_roberta",
         columns=STS, rows={"SimCSE-RoBERTa-base": {}})  # fmt: skip
    link("simcse_headline_sup_bert", "selfccl", "table_4", by_name, space="simcse_sup_bert",
         columns=STS, rows={"SimCSEsup-BERTbase": {}})  # fmt: skip
    dropouts: dict[str, Mapping[str, Any]] = {
        str(p): {"dropout": p, "same_mask": False} for p in (0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.5)
    }
    dropouts["0.1 with the same mask for both views"] = {"dropout": 0.1, "same_mask": True}
    link("simcse_table03_dropout", paper, "table_3_dropout", by_name, columns=DEV, rows=dropouts)
    for mode in ("unsup", "sup"):
        link(f"simcse_table06_pooling_{mode}", paper, "table_6_pooling", by_name,
             columns={mode: "stsb_dev"}, rows=_POOLINGS)  # fmt: skip
    alphas = {a: {"hard_negative_weight": math.log(float(a)), "loss_form": "hard"} for a in ("0.5", "1.0", "2.0")}
    link("simcse_table07_hard_negative", paper, "table_7_hard_negative_weight", by_name, columns=DEV,
         rows={"no hard negative": {"loss_form": "in_batch"}, **alphas})  # fmt: skip
    link("simcse_table04_nli", paper, "table_4_supervised_data", by_name, space="simcse_table07_hard_negative",
         columns=DEV, rows={"NLI entailment 314k": {"loss_form": "in_batch"},
                            "NLI entailment + hard negative": alphas["1.0"]})  # fmt: skip
    link("simcse_table_d1_temperature", paper, "table_d1_temperature", by_value, "temperature", columns=DEV, values={})
    link("simcse_table_d2_mlm", paper, "table_d2_mlm", by_value, "mlm_weight",
         columns={"STS-B": "stsb_dev", "avg_transfer": "transfer_avg_test"}, values={"none": 0.0})  # fmt: skip
    for row, space in (("unsup 1m", "simcse_unsup_bert"), ("QQP 134k", "simcse_table04_qqp"),
                       ("Flickr30k 318k", "simcse_table04_flickr30k"), ("ParaNMT 5m", "simcse_table04_paranmt"),
                       ("NLI neutral 314k", "simcse_table04_nli_neutral"),
                       ("NLI contradiction 314k", "simcse_table04_nli_contradiction"),
                       ("NLI all 942k", "simcse_table04_nli_all")):  # fmt: skip
        name = space if "table04" in space else "simcse_table04_unsup"
        link(name, paper, "table_4_supervised_data", by_name, space=space, columns=DEV, rows={row: {}})
    for name, source, table, space, row in (
        ("selfccl_table04_simcse", "selfccl", "table_4", "simcse_unsup_bert", "SimCSEunsup-BERTbase"),
        ("selfccl_table05_simcse", "selfccl", "table_5", "simcse_unsup_bert", "SimCSEunsup-BERTbase"),
        ("selfccl_table05_simcse_sup", "selfccl", "table_5", "simcse_sup_bert", "SimCSEsup-BERTbase"),
        ("sda_table05_simcse", "sda", "table_5", "simcse_unsup_roberta", "SimCSE-RoBERTa-base"),
        ("selfccl_table04_whitening", "selfccl", "table_4", "whitening_nli_bert", "BERTbase-whitening-NLI"),
        ("gclsr_table02_whitening", "gclsr", "table_2", "whitening_nli_bert", "BERT-base-whitening"),
        ("selfccl_table04_mirror_bert", "selfccl", "table_4", "mirror_bert_bert", "Mirror-BERTbase"),
        ("sda_table04_consert", "sda", "table_4", "consert_bert", "ConSERT-base"),
        ("sda_table04_esimcse_bert", "sda", "table_4", "esimcse_bert", "ESimCSE-BERT-base"),
        ("sda_table04_esimcse_roberta", "sda", "table_4", "esimcse_roberta", "ESimCSE-RoBERTa-base"),
        ("sda_table04_arccse", "sda", "table_4", "arccse_bert", "ArcCSE-BERT-base"),
        ("sda_table05_arccse", "sda", "table_5", "arccse_bert", "ArcCSE-BERT-base"),
        ("selfccl_table04_diffcse", "selfccl", "table_4", "diffcse_bert", "DiffCSE-BERTbase"),
        ("selfccl_table05_diffcse", "selfccl", "table_5", "diffcse_bert", "DiffCSE-BERTbase"),
        ("sda_table04_diffcse_bert", "sda", "table_4", "diffcse_bert", "DiffCSE-BERT-base"),
        ("sda_table04_diffcse_roberta", "sda", "table_4", "diffcse_roberta", "DiffCSE-RoBERTa-base"),
        ("sda_table05_diffcse_roberta", "sda", "table_5", "diffcse_roberta", "DiffCSE-RoBERTa-base"),
    ):
        link(name, source, table, by_name, space=space, columns=TRANSFER if table == "table_5" else STS, rows={row: {}})
    post = "simcse_reproduction_post"
    link("post_unsup", post, "readme_unsup", by_post)
    link("post_sup", post, "readme_sup", by_post, mode="sup")
    return found


LINKS = _links()
