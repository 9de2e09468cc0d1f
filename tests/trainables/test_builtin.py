"""The builtin corpora, parses, word vectors and encoder: what was generated, whole and unchanged."""

from __future__ import annotations

import hashlib
import itertools
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from trainables.contract.errors import DataError
from trainables.data.builtin import FOLDER, builtin_parses, word_vectors
from trainables.data.sets import load_corpus, load_pairs
from trainables.encoders.builtin_encoder import encoder_folder

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module", params=["en", "zh"])
def language(request: pytest.FixtureRequest) -> str:
    return request.param


def sentences(language: str) -> tuple[str, ...]:
    return tuple(load_corpus("builtin", language).columns["sentence"])


def dev_and_test(language: str) -> list[set[str]]:
    loaded = [load_pairs("builtin", split, language) for split in ("dev", "test")]
    return [{*pairs.first, *pairs.second} for pairs in loaded]


def test_datasheet_has_the_hash_of_every_file() -> None:
    listed = dict(re.findall(r"^\| `(\S+)` .* `([0-9a-f]{64})` \|$", (FOLDER / "README.md").read_text(), re.MULTILINE))
    found = [file for file in FOLDER.rglob("*") if file.suffix in (".gz", ".npz", ".json")]
    assert listed == {str(f.relative_to(FOLDER)): hashlib.sha256(f.read_bytes()).hexdigest() for f in found}
    assert sum(file.stat().st_size for file in found) < 1_500_000
    assert Path(str(files("trainables.data.builtin"))) == FOLDER


def test_corpora_and_their_revision(language: str) -> None:
    corpus, triplets = load_corpus("builtin", language), load_corpus("builtin", language, "triplets")
    assert (corpus.revision, corpus.note, triplets.revision) == ("builtin", "", "builtin")
    assert len(set(corpus.columns["sentence"])) == len(corpus) == len(triplets) == 6000
    assert list(triplets.columns) == ["anchor", "positive", "negative"]
    assert all(negative not in rest for *rest, negative in zip(*triplets.columns.values(), strict=True))


def test_splits_share_no_sentence(language: str) -> None:
    dev, test = dev_and_test(language)
    train = {*sentences(language), *itertools.chain(*load_corpus("builtin", language, "triplets").columns.values())}
    assert not dev & test
    assert not train & (dev | test)


def test_pairs_are_scored(language: str) -> None:
    for split in ("dev", "test"):
        pairs = load_pairs("builtin", split, language)
        assert (len(pairs), pairs.name, pairs.revision, pairs.subset) == (500, "builtin", "builtin", None)
        assert (pairs.gold.min(), pairs.gold.max()) == (0, 5)


def test_builtin_sets_exist_in_two_languages() -> None:
    for load in (lambda: load_corpus("builtin", "de"), lambda: load_pairs("builtin", "dev", "de")):
        with pytest.raises(DataError, match=r"'builtin' is made in en, zh only, not in de"):
            load()
    with pytest.raises(DataError, match=r"en, zh.*'fr'"):
        word_vectors("fr")
    with pytest.raises(DataError, match="no scored train pairs; expected dev or test"):
        load_pairs("builtin", "train", "en")


def test_every_parse_is_a_tree_over_its_sentence(language: str) -> None:
    texts = sentences(language)
    for text, tokens in zip(texts, builtin_parses(texts, language).sentences(), strict=True):
        assert "".join(t.text for t in tokens) == text.replace(" ", "")
        assert [t.dep for t in tokens].count("ROOT") == 1
        for i, token in enumerate(tokens):
            assert (token.head == i) == (token.dep == "ROOT")
            for _ in tokens:
                i = tokens[i].head
            assert tokens[i].dep == "ROOT", f"a cycle in {text}"


def test_some_sentences_have_the_parses_of_the_whole(language: str) -> None:
    texts = sentences(language)
    whole = builtin_parses(texts, language)
    assert list(builtin_parses(texts[9:2:-2], language).sentences()) == [whole[i] for i in (9, 7, 5, 3)]
    with pytest.raises(KeyError, match="Colourless"):
        builtin_parses((*texts, "Colourless ideas sleep."), language)


def test_word_vectors_are_those_of_the_first_version(language: str) -> None:
    words, vectors = word_vectors(language)
    assert vectors.shape == (len(set(words)), 300)
    assert vectors.dtype == np.float32
    assert hashlib.sha256("\n".join(words).encode() + vectors.tobytes()).hexdigest().startswith(
        {"en": "a3809c7767f5bae1", "zh": "149327e46dde0c8e"}[language]
    )  # fmt: skip


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


def test_tokenizer_covers_every_sentence(language: str, encoder) -> None:
    _, tokenizer, _ = encoder
    more = {"en": "It isn't that he can't help but sing; 3 zebras!", "zh": "毋庸置疑，今天天气很好！3个A"}[language]
    texts = [*sentences(language), *set.union(*dev_and_test(language)), more]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert all(tokenizer.unk_token_id not in row for row in ids)
    if language == "zh":
        assert [len(row) for row in ids] == [len(text) for text in texts]  # one token per character
    else:
        assert np.mean([len(row) for row in ids[:-1]]) < 14  # whole words, not letters


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
