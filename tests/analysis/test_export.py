"""Exported folders against our own vectors, in the programs they are made for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from trained_trials import TINY_GCLSR, trial_folder

from analysis.checkpoints.export import export
from analysis.checkpoints.trained import Trained, load_trained
from analysis.errors import AnalysisError, InputError
from trainables.contract.trial import TRIAL
from trainables.data.tokens import cache_dir
from trainables.encoders.builtin_encoder import encoder_folder

pytestmark = pytest.mark.costly

SENTENCES = {
    "en": ["A man is playing a guitar.", "", "Two dogs run across the field, barking!", "word " * 60, "It's café-time"],
    "zh": ["一个男人在弹吉他。", "", "两只狗在田野上奔跑，叫着！", "词" * 60, "今天天气很好 today"],
}
PICKLES = {".bin", ".pt", ".pkl", ".pickle", ".npz"}
CASES = {
    "simcse cls": ("simcse", "en", {}),
    "simcse raw": ("simcse", "en", {"pooling": "cls_before_pooler", "head": "none"}),
    "simcse avg": ("simcse", "en", {"pooling": "avg"}),
    "simcse top two": ("simcse", "en", {"pooling": "avg_top2"}),
    "simcse own pooler": ("simcse", "en", {"pooling": "pretrained_pooler"}),
    "simcse_sup head": ("simcse_sup", "en", {}),
    "edacse": ("edacse", "zh", {}),
    "sda": ("sda", "en", {}),
    "sda head at test": ("sda", "zh", {"head_at": "train_and_test"}),
    "selfccl": ("selfccl", "en", {}),
    "whitening": ("whitening", "en", {"dimensions": 20}),
    "whitening own pooler": ("whitening", "en", {"pooling": "pretrained_pooler", "dimensions": 20}),
    "esimcse with a queue": ("esimcse", "en", {"head_at": "train_and_test"}),
    "diffcse": ("diffcse", "en", {}),
    "adapters": ("simcse", "en", {"lora.rank": 4}),
    "adapters of an own pooler": ("simcse", "en", {"pooling": "pretrained_pooler", "lora.rank": 2, "lora.alpha": 4}),
}


def exported(tmp_path: Path, method: str, language: str, params: dict[str, Any]) -> tuple[Trained, Path]:
    trained = load_trained(str(trial_folder(tmp_path / "trial", method, language, params)))
    export(trained, tmp_path / "model", "# A model\n")
    return trained, tmp_path / "model"


@pytest.mark.parametrize("case", CASES)
def test_sentence_transformers_gives_our_vectors(tmp_path: Path, case: str) -> None:
    from sentence_transformers import SentenceTransformer

    method, language, params = CASES[case]
    trained, folder = exported(tmp_path, method, language, params)
    ours = trained.embed(SENTENCES[language])
    theirs = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES[language], convert_to_numpy=True)
    assert theirs.shape == ours.shape
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    assert np.ptp(ours, axis=0).max() > 0.01  # else equality would say nothing


def test_truncated_export_gives_the_first_dimensions(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    trained = load_trained(str(trial_folder(tmp_path / "trial", "pairs", "en", {"matryoshka": [64, 16]})))
    export(trained, tmp_path / "model", "# A model\n", 16)
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert model.truncate_dim == 16
    np.testing.assert_allclose(model.encode(SENTENCES["en"]), trained.embed(SENTENCES["en"])[:, :16], atol=1e-5)
    own = load_trained(str(trial_folder(tmp_path / "own", "gclsr", "en", TINY_GCLSR)))
    with pytest.raises(InputError, match="--truncate-dim: the loader of method gclsr gives whole vectors only"):
        export(own, tmp_path / "none", "# A model\n", 16)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "params", [{}, *({"pooling": pooling, "include_prompt": False} for pooling in ("avg", "avg_first_last"))]
)
def test_prompts_come_along(params: dict[str, Any], tmp_path: Path) -> None:
    """Our vectors of queries are what `encode` and `encode_query` give; documents have their own prompt."""
    from sentence_transformers import SentenceTransformer

    prompts = {"query": "the man: ", "document": "some words: "}
    with_prompts = load_trained(str(trial_folder(tmp_path / "trial", params=params, prompts=prompts)))
    without = load_trained(str(trial_folder(tmp_path / "plain", params=params)))
    export(with_prompts, tmp_path / "model", "# A model\n")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = SENTENCES["en"]
    ours = with_prompts.embed(texts)
    np.testing.assert_allclose(model.encode(texts), ours, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(texts), ours, atol=1e-5)
    documents = with_prompts.tokenise([prompts["document"] + text for text in texts])
    vectors = with_prompts.network.embed(documents.take(range(len(texts))))
    np.testing.assert_allclose(model.encode_document(texts), vectors, atol=1e-5)
    whole = without.embed([prompts["document"] + text for text in texts])
    assert bool(np.abs(vectors.numpy() - whole).max() < 1e-5) is params.get("include_prompt", True)
    assert np.abs(ours - without.embed(texts)).max() > 0.01


def test_files_are_safetensors_and_readable_by_all(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        _, folder = exported(tmp_path, "simcse", "en", {})
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert "model.safetensors" in modes
    assert not {Path(name).suffix for name in modes} & PICKLES
    assert set(modes.values()) == {0o644}, modes
    assert (folder / "README.md").read_text() == "# A model\n"


def test_trained_weights_are_what_is_exported(tmp_path: Path) -> None:
    from transformers import AutoModel

    trained, folder = exported(tmp_path, "simcse", "en", {})
    loaded, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    for name, value in trained.network.encoder.state_dict().items():  # type: ignore[union-attr]
        np.testing.assert_array_equal(loaded.state_dict()[name].numpy(), value.numpy())


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("attention", [False, True])
def test_gclsr_loader_stands_alone(tmp_path: Path, language: str, attention: bool) -> None:
    params = TINY_GCLSR | {"attention_at_eval": attention}
    trained, folder = exported(tmp_path, "gclsr", language, params)
    spec = importlib.util.spec_from_file_location("gclsr_loader_copy", folder / "gclsr_loader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ours = trained.embed(SENTENCES[language])
    np.testing.assert_allclose(module.Model(folder).encode(SENTENCES[language], batch_size=2), ours, atol=1e-5)
    assert not {path.suffix for path in folder.rglob("*")} & PICKLES


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    trained = load_trained(str(trial_folder(tmp_path / "trial")))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        export(trained, tmp_path / "model", "")
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["mine.txt"]


def test_changed_encoder_is_refused(tmp_path: Path) -> None:
    """A checkpoint of adapters is nothing without the weights that they lie beside."""
    encoder = Path(shutil.copytree(encoder_folder("en", cache_dir()), tmp_path / "encoder"))
    whole = trial_folder(tmp_path / "whole", encoder=str(encoder))
    adapters = trial_folder(tmp_path / "adapters", params={"lora.rank": 2}, encoder=str(encoder))
    before = load_trained(str(whole)).embed(["a man"]), load_trained(str(adapters)).embed(["a man"])

    weights = load_file(encoder / "model.safetensors")
    save_file({name: w + 0.1 for name, w in weights.items()}, encoder / "model.safetensors", {"format": "pt"})
    np.testing.assert_allclose(load_trained(str(whole)).embed(["a man"]), before[0], atol=1e-5)
    for folder, untrained in ((adapters, False), (whole, True)):
        with pytest.raises(AnalysisError, match=f"{folder}: the weights in encoder {encoder} are not those that the"):
            load_trained(str(folder), untrained=untrained)
    record = json.loads((adapters / TRIAL).read_text())
    (adapters / TRIAL).write_text(json.dumps({k: v for k, v in record.items() if k != "encoder"}))  # an older one
    assert np.abs(load_trained(str(adapters)).embed(["a man"]) - before[1]).max() > 0.01

    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.1}))
    with pytest.raises(AnalysisError, match="the configuration or tokenizer files in encoder"):
        load_trained(str(whole))
