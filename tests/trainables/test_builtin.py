"""The builtin corpora, parses, word vectors and encoder: what was generated, whole and unchanged."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

from trainables.contract.errors import DataError
from trainables.data.builtin import FOLDER, word_vectors
from trainables.data.parses import builtin_parses
from trainables.data.retrieval import (
    BUILTIN_RETRIEVAL,
    check_retrieval,
    dev_metrics,
    is_retrieval,
    load_retrieval,
)
from trainables.data.sets import load_corpus, load_pairs
from trainables.encoders.builtin_encoder import encoder_folder

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module", params=["en", "zh"])
def language(request: pytest.FixtureRequest) -> str:
    return request.param


def sentences(language: str) -> tuple[str, ...]:
    return tuple(load_corpus("builtin", language).columns["sentence"])


def test_datasheet_has_the_hash_of_every_file() -> None:
    listed = dict(re.findall(r"^\| `(\S+)` .* `([0-9a-f]{64})` \|$", (FOLDER / "README.md").read_text(), re.MULTILINE))
    found = [file for file in FOLDER.rglob("*") if file.suffix in (".gz", ".npz", ".json", ".tsv")]
    assert listed == {str(f.relative_to(FOLDER)): hashlib.sha256(f.read_bytes()).hexdigest() for f in found}
    assert sum(file.stat().st_size for file in found) < 1_500_000
    assert Path(str(files("trainables.data.builtin"))) == FOLDER


def test_corpora_and_their_revision(language: str) -> None:
    corpus, triplets = load_corpus("builtin", language), load_corpus("builtin", language, "triplets")
    assert (corpus.revision, corpus.note, triplets.revision) == ("builtin", "", "builtin")
    assert len(set(corpus.columns["sentence"])) == len(corpus) == len(triplets) == 6000
    assert list(triplets.columns) == ["anchor", "positive", "negative"]
    scored = load_corpus("builtin", language, "scored_pairs")
    dev = {*load_pairs("builtin", "dev", language).first, *load_pairs("builtin", "test", language).first}
    assert len(scored) == 3000
    assert not dev & {*scored.columns["first"], *scored.columns["second"]}
    assert all(negative not in rest for *rest, negative in zip(*triplets.columns.values(), strict=True))


def test_retrieval_set(language: str) -> None:
    name = BUILTIN_RETRIEVAL[language]
    found, train = load_retrieval(name), {*load_corpus("builtin", language, "triplets").columns["anchor"]}
    assert is_retrieval(name)
    assert dev_metrics(name)[0] == f"{name}_ndcg10_dev"
    assert (len(found.documents), len(found.queries), found.revision) == (600, 150, "builtin")
    assert all(any(grades.values()) for grades in found.grades)
    assert not train & {*found.documents, *found.queries}
    assert check_retrieval(name) == ""


def test_builtin_sets_exist_in_two_languages() -> None:
    for load in (lambda: load_corpus("builtin", "de"), lambda: load_pairs("builtin", "dev", "de")):
        with pytest.raises(DataError, match=r"'builtin' is made in en, zh only, not in de"):
            load()
    with pytest.raises(DataError, match=r"en, zh.*'fr'"):
        word_vectors("fr")


def test_some_sentences_have_the_parses_of_the_whole(language: str) -> None:
    texts = sentences(language)
    whole = builtin_parses(texts, language)
    assert list(builtin_parses(texts[9:2:-2], language).sentences()) == [whole[i] for i in (9, 7, 5, 3)]
    with pytest.raises(KeyError, match="Colourless"):
        builtin_parses((*texts, "Colourless ideas sleep."), language)


@pytest.fixture(scope="module")
def encoder(language: str, tmp_path_factory: pytest.TempPathFactory):
    transformers = pytest.importorskip("transformers")
    cache = tmp_path_factory.mktemp(f"cache-{language}")
    folder = encoder_folder(language, cache)
    assert encoder_folder(language, cache) == folder
    assert [p.name for p in cache.iterdir()] == [folder.name], "half-written folders stay behind"
    model, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]  # noqa: PT018  one fact
    return folder, transformers.AutoTokenizer.from_pretrained(folder), model


def test_encoder_is_that_of_the_first_version(language: str, encoder) -> None:
    """Studies are resumed on it, and published smoke figures are its own."""
    import torch

    folder, tokenizer, model = encoder
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert weights.startswith({"en": "e9bc02f3fd6b38cc", "zh": "1b710ce9c51569f4"}[language])
    batch = tokenizer(list(sentences(language)[:4]), padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.eval()(**batch).last_hidden_state
    assert hidden.shape[::2] == (4, 64)
    assert bool(torch.isfinite(hidden).all())
    assert bool((hidden[:, 0].std(dim=0) > 0.01).all()), "[CLS] does not depend on the sentence"
