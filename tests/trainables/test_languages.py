"""Any language, and sentences as long as the encoder takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.checkpoints.testing import averages, default_sets
from analysis.errors import InputError
from benchmarks.tiny_encoders import Family, save_tiny
from search.space import check_spaces, load_space
from search.space.load import smoke
from trainables.contract.registry import declared, method_names
from trainables.contract.trial import TrialSpec
from trainables.encoders.load import load_encoder
from trainables.encoders.network import SentenceNetwork
from trainables.encoders.packing import Packed
from trainables.training.trial import run_trial

pytestmark = pytest.mark.costly

SPACE = """\
name: lang
method: {method}
encoder: {encoder}
data: {{train: {folder}/train.txt, dev: {folder}/pairs.tsv, language: de}}
metric: {{name: pairs_dev}}
params:
  max_length: {length}
  temperature: {{choice: [0.05, 0.1]}}
search: {{sampler: grid}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of 1,024 positions, and German files with sentences of over 512 tokens."""
    folder = tmp_path_factory.mktemp("languages")
    load_encoder(str(save_tiny(Family("bert", {"max_position_embeddings": 1024}), folder / "encoder")))  # measured here
    words = ("red", "cat", "dog", "bird", "runs", "the")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, n)) for n in (3, 700, 5, 600)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    pairs = [
        f"{a}\t{b}\t{i}\n" for i, (a, b) in enumerate((("red cat", "a cat"), ("dog", "bird"), ("the dog", "the cat")))
    ]
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(pairs))
    return folder


def written(folder: Path, method: str = "simcse", length: int = 900) -> Path:
    path = folder / f"{method}.yaml"
    path.write_text(SPACE.format(method=method, encoder=folder / "encoder", folder=folder, length=length))
    return path


def test_only_methods_with_rules_of_a_language_refuse_another(folder: Path) -> None:
    refusing = []
    for method in method_names():
        (checked,) = check_spaces([written(folder, method)])
        if any("data.language" in problem for problem in checked.problems):
            refusing.append(method)
            line = f"{folder}/{method}.yaml:4: data.language: method {method} has rules for en, zh only, got 'de'"
            assert line in checked.problems
    assert set(refusing) == {"sda", "sncse", "gclsr"} == {m for m in method_names() if declared(m).languages}


def test_sentences_up_to_the_encoders_own_length(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checked,) = check_spaces([written(folder, length=1024)])
    assert list(checked.problems) == []
    (refused,) = check_spaces([written(folder, length=1025)])
    assert list(refused.problems) == [
        f"{folder}/simcse.yaml:7: params.max_length: expected at most 1024 for {folder}/encoder, got 1025"
    ]
    seen: list[int] = []
    pooled = SentenceNetwork._pooled

    def watched(self: Any, packed: Packed, *rest: Any) -> Any:
        if self.training:
            seen.append(packed.longest)
        return pooled(self, packed, *rest)

    monkeypatch.setattr(SentenceNetwork, "_pooled", watched)
    space = load_space(written(folder))
    spec = TrialSpec(
        method="simcse", encoder=space.encoder, metric="pairs_dev", folder=str(folder / "trial"),
        data={"train": space.data.train, "dev": list(space.data.dev), "language": "de"},
        params=space.values({"temperature": 0.05, "batch_size": 4, "precision": "fp32"}),
    )  # fmt: skip
    outcome = run_trial(spec, lambda _: "go")
    assert outcome.stop == "completed", outcome.traceback
    assert seen == [702]  # 700 words and two special tokens


def test_a_smoke_run_of_any_language_is_english(folder: Path) -> None:
    assert smoke(load_space(written(folder))).data.language == "en"


def test_a_language_without_a_suite_of_test_sets() -> None:
    with pytest.raises(InputError, match="language 'de' has no suite of test sets; name some with --set"):
        default_sets({"dev": ["mine"], "language": "de"})
    assert averages({"mine": 0.5}, "de") == {}
