"""Your own MTEB task: the scored pairs of pairs.tsv, beside this file (sentence1, sentence2, score)."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset, DatasetDict
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

from trainables.data.sets import load_pairs

FILE = Path(__file__).with_name("pairs.tsv")
ABOUT = dict.fromkeys(
    ("reference", "date", "domains", "task_subtypes", "license", "annotations_creators", "dialect", "sample_creation",
     "bibtex_citation")
)  # fmt: skip


class SupportQuestions(AbsTaskSTS):
    metadata = TaskMetadata(
        name="SupportQuestions", description="Pairs of questions to support, scored by two people.", type="STS",
        category="t2t", modalities=["text"], dataset={"path": FILE.name, "revision": "1"}, eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score="cosine_spearman", **ABOUT,
    )  # fmt: skip

    def load_data(self, **_: object) -> None:
        pairs = load_pairs(str(FILE), "test", "en")
        rows = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.gold.tolist()}
        self.dataset = DatasetDict(test=Dataset.from_dict(rows))
        self.data_loaded = True
