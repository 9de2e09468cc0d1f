"""SDA: prepared columns, coverage, caching, the share, views and loss, and the comparison edits' distributions."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from annotated import annotated
from fake_tools import FakeTools
from outcomes import outcomes

from trainables.contract.config import build
from trainables.data.parses import Parses, parsed
from trainables.data.tokens import TokenColumn
from trainables.methods.losses import info_nce, info_nce_margin
from trainables.methods.sda import edits
from trainables.methods.sda import method as sda
from trainables.methods.sda.config import COMPARISON_EDITS, EDITS, SdaConfig
from trainables.methods.sda.edits import RULE_SETS, edited_texts
from trainables.methods.sda.rules import pick_places

CASES = json.loads((Path(__file__).parent.parent / "goldens" / "sda_rules_en.json").read_text("utf-8"))["cases"]
SENTENCES = [case["raw"] for case in CASES]
PLAIN = annotated("Red|ADJ|JJ|amod|1|red roses|NOUN|NNS|ROOT|1|rose")  # DN has nothing to do here


class ToyTools(FakeTools):
    """The reference annotation as parser, a dictionary as cache."""

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[Any, Any] = {}
        self.made: list[str] = []

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], Any]) -> Any:
        key = (name, *parts)
        if key not in self.store:
            self.made.append(name)
            self.store[key] = make()
        return self.store[key]

    def parse(self, texts: Sequence[str]) -> Parses:
        known = {case["raw"]: case["tokens"] for case in CASES}
        return Parses.from_tokens(
            annotated(
                " ".join(
                    "|".join(str(t[k]) for k in ("text", "pos", "tag", "dep", "head", "lemma")) for t in known[text]
                )
            )
            for text in texts
        )


def uncached(_name: str, _parts: Sequence[object], make: Callable[[], Any]) -> Any:
    return make()


def prepared(seed: int = 0, tools: ToyTools | None = None, **values: Any) -> tuple[Any, ToyTools]:
    tools = tools or ToyTools()
    return sda.prepare({"sentence": SENTENCES}, build(SdaConfig, values), seed, tools), tools


def test_columns_are_outputs_of_the_rules() -> None:
    examples, tools = prepared(augmentation="dn")
    assert set(examples.columns) == {"anchor", "positive", "negative"}
    for i, case in enumerate(CASES):
        row = {role: tools.text(column[i]) for role, column in examples.columns.items()}
        assert row["anchor"] == case["raw"]
        assert row["positive"] in {o["output"] for o in case["dn"]}
        assert row["negative"] in {o["output"] for o in case["neg"]}
    changed = sum(tools.text(examples.columns["positive"][i]) != raw for i, raw in enumerate(SENTENCES))
    assert examples.facts["coverage_dn"] == changed / len(SENTENCES)
    assert examples.facts["published_coverage_dn"] == 0.8789
    assert 0 < examples.facts["coverage_neg"] <= 1
    texts = {role: [tools.text(column[i]) for i in range(len(SENTENCES))] for role, column in examples.columns.items()}
    for edit, role in (("dn", "positive"), ("neg", "negative")):
        assert examples.facts[f"jaccard_{edit}"] == pytest.approx(sda.mean_jaccard(texts["anchor"], texts[role], "en"))


def test_a_second_study_finds_everything_made() -> None:
    first, tools = prepared(seed=1, augmentation="ensemble")
    made = len(tools.made)
    second, _ = prepared(seed=2, tools=tools, augmentation="ensemble")
    assert len(tools.made) == made
    assert np.array_equal(first.columns["positive"].flat, second.columns["positive"].flat)


def test_neighbours_and_processes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "CHUNK", 7)
    tools = ToyTools()
    some = tools.parse(SENTENCES * 3)
    alone = tools.parse(SENTENCES)

    one = edited_texts(alone, "mv", "official", "en", uncached)
    monkeypatch.setattr(edits, "ALONE", 10)
    monkeypatch.setattr(edits, "share_of_cores", lambda: 2)
    assert edited_texts(some, "mv", "official", "en", uncached) == one * 3


def test_draws_differ_between_sentences() -> None:
    tokens = [
        annotated(f"Tom{i}|PROPN|NNP|nsubj|1 sleeps|VERB|VBZ|ROOT|1|sleep") for i in range(900)
    ]  # all nine modal phrases come up: the chance that one does not is 9 * (8/9)^900 < 1e-45
    texts = edited_texts(Parses.from_tokens(tokens), "mv", "official", "en", uncached)
    assert len({text.split(" ", 1)[1] for text in texts}) == 9


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.99, 1.0])
def test_share_is_exact_nested_and_by_seed(share: float) -> None:
    n = 200
    starts = np.arange(n + 1, dtype=np.int64)
    plain = TokenColumn(np.zeros(n, np.int32), starts)
    edited = TokenColumn(np.ones(2 * n, np.int32), 2 * starts)
    chosen = {x: _edited_rows(sda.partly_edited(edited, plain, x, seed=7)) for x in (share, min(1.0, share + 0.2))}
    assert len(chosen[share]) == round(share * n)
    assert chosen[share] <= chosen[min(1.0, share + 0.2)]
    if 0 < share < 0.9:
        assert _edited_rows(sda.partly_edited(edited, plain, share, seed=8)) != chosen[share]


def _edited_rows(column: TokenColumn) -> set[int]:
    assert len(column) == 200
    assert all(len(column[i]) == 1 + int(column[i][0]) for i in range(200))
    return {i for i in range(200) if column[i][0]}


def test_mask_takes_the_tokenizers_own() -> None:
    examples, tools = prepared(augmentation="mask")
    assert all("[MASK]" in tools.text(examples.columns["positive"][i]) for i in range(len(examples)))
    examples, tools = prepared(tools=_Without("[MASK]"), augmentation="mask")
    assert all("<mask>" in tools.text(examples.columns["positive"][i]) for i in range(len(examples)))
    with pytest.raises(ValueError, match=r"tokenizer with one of \[MASK\], <mask>"):
        prepared(tools=_Without("[MASK]", "<mask>"), augmentation="mask")


class _Without(ToyTools):
    """These mask tokens are several tokens here."""

    def __init__(self, *masks: str) -> None:
        super().__init__()
        self.masks = masks

    def tokenise(self, texts: Sequence[str], prompt: str = "") -> TokenColumn:
        for mask in self.masks:
            texts = [text.replace(mask, f"{mask[0]} {mask[1:]}") for text in texts]
        return super().tokenise(texts, prompt)


@pytest.mark.parametrize(
    ("rule_set", "language"), [(r, language) for r in sorted(RULE_SETS) for language in RULE_SETS[r]]
)
@pytest.mark.parametrize("edit", [*EDITS, "neg", *(e for e in COMPARISON_EDITS if e != "synonym")])
def test_every_edit_runs_on_generated_sentences(edit: str, rule_set: str, language: str) -> None:
    from trainables.data.sets import load_corpus

    texts = load_corpus("builtin", language).columns["sentence"][:60]
    parses = parsed(texts, "builtin", language, uncached)
    plain = edited_texts(parses, "none", rule_set, language, uncached)
    edited = edited_texts(parses, edit, rule_set, language, uncached, "[MASK]")
    assert [t.replace(" ", "") for t in plain] == [t.replace(" ", "") for t in texts]
    assert all(t.strip() for t in edited)
    assert sum(a != b for a, b in zip(plain, edited, strict=True)) >= 15


def test_an_empty_line_stays_empty() -> None:
    parses = Parses.from_tokens([[], PLAIN])
    texts = edited_texts(parses, "pi", "official", "en", uncached)
    assert texts[0] == ""
    assert texts[1] != ""


def test_jaccard() -> None:
    assert sda.mean_jaccard(["a b c", "x y"], ["a b d", "x y"], "en") == pytest.approx((2 / 4 + 1) / 2)
    assert sda.mean_jaccard(["我去"], ["我 不去"], "zh") == pytest.approx(2 / 3)
    assert sda.mean_jaccard([""], [""], "en") == 1.0


@pytest.mark.parametrize("scope", ["own", "all"])
def test_loss_is_info_nce_with_or_without_negations(scope: str) -> None:
    z = {r: torch.randn(5, 7, dtype=torch.float64) for r in ("anchor", "positive", "negative")}
    config = build(SdaConfig, {"temperature": 0.3, "delta": 0.4, "negation_scope": scope})
    assert sda.loss(z, config) == info_nce_margin(*z.values(), 0.3, 0.4, scope)
    without = build(SdaConfig, {"negation_negative": False, "temperature": 0.3})
    assert sda.loss(z, without) == info_nce(z["anchor"], z["positive"], 0.3)


@pytest.mark.costly
@pytest.mark.real_data
def test_real_sentences(real_data: Path) -> None:
    """Coverage near the published (98.14, 88.32, 87.89 %) on Wikipedia sentences, with a weaker parser."""
    import gzip

    pytest.importorskip("spacy")
    folder = Path(os.environ.get("SEARCH_PIPELINE_DIR", real_data.parent / "models")) / "en_ewt_sm"
    if not folder.is_dir():
        pytest.skip("no trained pipeline: SEARCH_PIPELINE_DIR is not set")
    with gzip.open(real_data / "en_wiki_sentences.txt.gz", "rt", encoding="utf-8") as file:
        texts = [next(file).rstrip("\n") for _ in range(800)]
    tools = ToyTools()
    tools.parse = lambda texts: parsed(texts, str(folder), "en", tools.cached)  # type: ignore[method-assign]
    for edit, published in sda.PUBLISHED_COVERAGE.items():
        config = build(SdaConfig, {"augmentation": edit})
        facts = sda.prepare({"sentence": texts}, config, 0, tools).facts
        assert abs(facts[f"coverage_{edit}"] - published) < 0.15, facts
    made, start = len(tools.made), time.perf_counter()
    sda.prepare({"sentence": texts}, build(SdaConfig, {"augmentation": "pi"}), 1, tools)
    assert len(tools.made) == made
    assert time.perf_counter() - start < 2


# ------------------------------------------------------------ comparison edits
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


def test_edits_by_share_change_their_share() -> None:
    for percent in (10, 20, 30):
        words = edits.word_edit(f"delete_{percent}", "en")(TEN, Random(0))
        assert len(words) == 10 - percent // 10
        assert words == sorted(words)
    words = edits.mask_words([str(i) for i in range(20)], Random(1), "[MASK]")
    assert words.count("[MASK]") == 3
    assert all(w in ("[MASK]", str(i)) for i, w in enumerate(words))
    for count, replaced in ((9, 1), (15, 1), (19, 1), (20, 2), (29, 2)):  # as EDA rounds
        assert edits.replace_synonyms(["w"] * count, Random(0), lambda _: ["s"], 0.1).count("s") == replaced


@pytest.mark.parametrize("name", [n for n in COMPARISON_EDITS if n != "synonym"])
def test_one_word_survives(name: str) -> None:
    edit = edits.word_edit(name, "en", "[MASK]")
    assert all("a" in text.split() for text in outcomes(lambda rng: " ".join(edit(["a"], rng))))


def _synset(*names: str) -> SimpleNamespace:
    return SimpleNamespace(lemma_names=lambda **_: list(names))


def test_wordnet_gives_sorted_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    synsets = {("dog", "eng"): [_synset("dog", "domestic_dog"), _synset("cad", "dog")]}
    reader = SimpleNamespace(synsets=lambda word, lang="eng": synsets.get((word, lang), []))
    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=reader))
    synonyms = edits.wordnet("en")
    assert synonyms("Dog") == ["cad", "domestic dog"]
    assert synonyms("unheard") == []


def test_missing_thesaurus_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def synsets(*_: str, **__: str) -> None:
        raise LookupError("Resource wordnet not found.")

    monkeypatch.setitem(sys.modules, "nltk.corpus", SimpleNamespace(wordnet=SimpleNamespace(synsets=synsets)))
    with pytest.raises(edits.ThesaurusError, match=r"`python -m nltk.downloader wordnet omw-1.4`"):
        edits.word_edit("synonym", "zh")
    monkeypatch.setitem(sys.modules, "nltk.corpus", None)
    with pytest.raises(edits.ThesaurusError, match=r"pip install 'contrastive-search\[sda\]'"):
        edits.wordnet("en")
