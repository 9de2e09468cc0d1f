"""The comparison edits: exact distributions on short sentences."""

from __future__ import annotations

import sys
from fractions import Fraction
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from outcomes import outcomes

from trainables.methods.sda import edits
from trainables.methods.sda.config import COMPARISON_EDITS
from trainables.methods.sda.words import pick_places

TEN = [str(i) for i in range(10)]


def test_places_are_uniform_sets() -> None:
    found = outcomes(lambda rng: " ".join(map(str, pick_places(rng, 4, 2))))
    assert found == {f"{i} {j}": Fraction(1, 6) for i in range(4) for j in range(i + 1, 4)}


SYNONYMS = {"big": ["large", "great"], "dog": ["hound"]}


@pytest.mark.parametrize(
    ("edit", "words", "options", "expected"),
    [
        *((edits.word_edit(f"crop_{10 * gone}", "en"), TEN, {},
           {" ".join(TEN[start : start + 10 - gone]): Fraction(1, gone + 1) for start in range(gone + 1)})
          for gone in (1, 2, 3)),
        (edits.delete_words, ["a", "b", "c"], {"share": 0.1}, dict.fromkeys(("b c", "a c", "a b"), Fraction(1, 3))),
        (edits.repeat_words, ["a", "b"], {},
         {"a b": Fraction(1, 3), "a a b": Fraction(1, 6), "a b b": Fraction(1, 6), "a a b b": Fraction(1, 3)}),
        *((edits.insert_random_marks, ["a", "b"], {"language": language},
           {text: Fraction(1, 12) for m in marks for text in (f"{m} a b", f"a {m} b")})
          for language, marks in (("en", ".;?:!,"), ("zh", "。；？：！，"))),
        (edits.replace_synonyms, ["a", "big", "dog"], {"synonyms": lambda w: SYNONYMS.get(w, ())},
         {"a large dog": Fraction(1, 4), "a great dog": Fraction(1, 4), "a big hound": Fraction(1, 2)}),
        (edits.replace_synonyms, ["a", "b"], {"synonyms": lambda _: ()}, {"a b": Fraction(1)}),
    ],
)  # fmt: skip
def test_edit_has_its_exact_distribution(
    edit: Any, words: list[str], options: dict[str, Any], expected: dict[str, Fraction]
) -> None:
    assert outcomes(lambda rng: " ".join(edit(words, rng, **options))) == expected


@pytest.mark.parametrize("percent", [10, 20, 30])
def test_deletion_removes_its_share(percent: int) -> None:
    words = edits.word_edit(f"delete_{percent}", "en")(TEN, Random(0))
    assert len(words) == 10 - percent // 10
    assert words == sorted(words)


def test_mask_hides_its_share() -> None:
    words = edits.mask_words([str(i) for i in range(20)], Random(1), "[MASK]")
    assert words.count("[MASK]") == 3
    assert all(w in ("[MASK]", str(i)) for i, w in enumerate(words))


@pytest.mark.parametrize(("words", "replaced"), [(9, 1), (15, 1), (19, 1), (20, 2), (29, 2)])
def test_synonyms_are_as_many_as_edas(words: int, replaced: int) -> None:
    found = edits.replace_synonyms(["w"] * words, Random(0), synonyms=lambda _: ["s"], share=0.1)
    assert found.count("s") == replaced


@pytest.mark.parametrize("name", [n for n in COMPARISON_EDITS if n != "synonym"])
def test_one_word_survives(name: str) -> None:
    edit = edits.word_edit(name, "en", "[MASK]")
    assert all("a" in text.split() for text in outcomes(lambda rng: " ".join(edit(["a"], rng))))


def test_unknown_edit_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"edit: expected one of crop_10, .*, got 'shuffle'"):
        edits.word_edit("shuffle", "en")


def _synset(*names: str) -> SimpleNamespace:
    return SimpleNamespace(lemma_names=lambda **_: list(names))


def test_wordnet_gives_sorted_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    synsets = {("dog", "eng"): [_synset("dog", "domestic_dog"), _synset("cad", "dog")]}
    reader = SimpleNamespace(synsets=lambda word, lang="eng": synsets.get((word, lang), []))
    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=reader))
    synonyms = edits.wordnet("en")
    assert synonyms("Dog") == ["cad", "domestic dog"]
    assert synonyms("unheard") == []


def test_missing_wordnet_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def synsets(*_: str, **__: str) -> None:
        raise LookupError("Resource wordnet not found.")

    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=SimpleNamespace(synsets=synsets)))
    with pytest.raises(edits.ThesaurusError, match=r"`python -m nltk.downloader wordnet omw-1.4`"):
        edits.word_edit("synonym", "zh")


def test_missing_nltk_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    with pytest.raises(edits.ThesaurusError, match=r"pip install 'contrastive-search\[sda\]'"):
        edits.wordnet("en")
