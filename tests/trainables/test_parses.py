"""Parses: storage round trips, the spaCy path, and the errors of a missing or unfit pipeline."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from annotated import annotated

from trainables.contract import limits
from trainables.contract.trial import phases_to
from trainables.data import parses as parsing
from trainables.data.parses import ParserError, Parses, parse_texts, parsed, parser_identity

pytestmark = pytest.mark.costly

spacy = pytest.importorskip("spacy")

SENTENCES = [
    annotated("She|PRON|PRP|nsubj|1|she painted|VERB|VBD|ROOT|1|paint fences|NOUN|NNS|dobj|1|fence"),
    [],
    annotated("他|PRON|PN|nsubj|1 来|VERB|VV|ROOT|1"),
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A spaCy pipeline with an untrained tagger and parser: its parses mean nothing but are trees."""
    from spacy.training import Example

    nlp = spacy.blank("en")
    nlp.add_pipe("tagger")
    nlp.add_pipe("parser")
    words = ["We", "saw", "them"]
    annotation = {"words": words, "tags": ["PRP", "VBD", "PRP"], "heads": [1, 1, 1], "deps": ["nsubj", "ROOT", "dobj"]}
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc(" ".join(words)), annotation)])
    folder = tmp_path_factory.mktemp("pipeline") / "untrained"
    nlp.to_disk(folder)
    return str(folder)


def test_round_trips() -> None:
    parses = Parses.from_tokens(SENTENCES)
    assert len(parses) == 3
    assert list(parses.sentences()) == SENTENCES
    assert [parses[i] for i in range(3)] == SENTENCES
    assert list(parses.part(1, 3).sentences()) == SENTENCES[1:]
    assert set(parses.part(1, 3).words) == {t.text for t in SENTENCES[2]} | {t.lemma for t in SENTENCES[2]}
    again = pickle.loads(pickle.dumps(parses))
    assert list(again.sentences()) == SENTENCES
    assert again.fingerprint == parses.fingerprint
    assert Parses.from_tokens(SENTENCES[:2]).fingerprint != parses.fingerprint
    assert list(Parses.from_tokens([]).sentences()) == []


def test_parsing_gives_a_tree_over_the_stripped_text(pipeline: str) -> None:
    texts = ["  The cat sat on the mat. ", "", "It rained, and we stayed."]
    parses = parse_texts(texts, pipeline, "en")
    assert len(parses) == 3
    for text, tokens in zip(texts, parses.sentences(), strict=True):
        doc = spacy.load(pipeline)(text.strip())
        expected = [(t.text, t.lemma_, t.pos_, t.tag_, t.dep_, t.head.i, bool(t.whitespace_)) for t in doc]
        assert [tuple(t) for t in tokens] == expected


def test_processes_do_not_change_the_parses(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "CHUNK", 10)
    monkeypatch.setattr("trainables.contract.trial.EVERY_S", 0)
    texts = [f"Sentence number {i} says {'very ' * (i % 4)}little." for i in range(21)]
    seen: list[tuple[str, int, int]] = []
    with phases_to(lambda *progress: seen.append(progress)):
        apart = parse_texts(texts, pipeline, "en", processes=2)
    assert list(apart.sentences()) == list(parse_texts(texts, pipeline, "en", processes=1).sentences())
    assert seen == [(f"Parsing with {pipeline}", done, 21) for done in (10, 20, 21)]


@pytest.mark.parametrize(("ranks", "processes"), [(None, 4), ("2", 2), ("8", 1)])
def test_a_rank_parses_on_its_share_of_cores(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, ranks: str | None, processes: int
) -> None:
    started: list[int] = []
    monkeypatch.setattr(limits, "cores", lambda: 4)
    monkeypatch.setattr(parsing, "ALONE", 1)
    monkeypatch.setattr(parsing, "in_chunks", lambda _work, _chunks, count, _title: started.append(count) or [])
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    parse_texts(["It rained.", "We stayed."], pipeline, "en")
    assert started == [processes]


def test_cached_by_content_and_pipeline(pipeline: str) -> None:
    store: dict[Any, Any] = {}

    def cached(name: str, parts: Sequence[object], make: Callable[[], Any]) -> Any:
        key = (name, *parts)
        if key not in store:
            store[key] = make()
        return store[key]

    first = parsed(["One two."], pipeline, "en", cached)
    assert parsed(["One two."], pipeline, "en", cached).fingerprint == first.fingerprint
    assert len(store) == 1
    parsed(["One two three."], pipeline, "en", cached)
    assert len(store) == 2


def test_identity_differs_between_equal_names(pipeline: str, tmp_path: Path) -> None:
    other = spacy.load(pipeline)
    other.meta["description"] = "trained on something else"
    other.to_disk(tmp_path / "other")
    assert parser_identity(pipeline, "en") != parser_identity(str(tmp_path / "other"), "en")
    assert parser_identity("builtin", "zh") == "builtin"


def test_missing_pipeline_names_the_command() -> None:
    with pytest.raises(ParserError, match=r"'xx_absent_sm': .*not installed.*`python -m spacy download xx_absent_sm`"):
        parse_texts(["a"], "xx_absent_sm", "en")


@pytest.mark.skipif(spacy.util.is_package("zh_core_web_md"), reason="zh_core_web_md is installed here")
def test_the_default_is_the_papers() -> None:
    with pytest.raises(ParserError, match=r"`python -m spacy download zh_core_web_md`"):
        parser_identity(None, "zh")


def test_unfit_pipelines(pipeline: str, tmp_path: Path) -> None:
    with pytest.raises(ParserError, match=r"no spaCy pipeline in this folder"):
        parser_identity(str(tmp_path), "en")
    with pytest.raises(ParserError, match=r"expected a pipeline for 'zh', got one for 'en'"):
        parser_identity(pipeline, "zh")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(ParserError, match=r"with a dependency parser, got only a tokenizer"):
        parse_texts(["a"], str(tmp_path / "blank"), "en")
