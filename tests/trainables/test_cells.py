"""What one cell of a file means: a text, a score, nothing, or an error."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from pathlib import Path

import pytest
from test_retrieval import JUDGED, QUERIES, written

from trainables.contract.errors import DataError
from trainables.data.cells import has_score, score_of, text_of
from trainables.data.retrieval import load_retrieval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is ", "as it is "), ("nan", "nan"), ("None", "None"), ("a\U0001f600", "a\U0001f600"), (7, "7"),
        (1.5, "1.5"), (Decimal("1.50"), "1.50"), (b"caf\xc3\xa9", "caf\u00e9"), (None, ""), (math.nan, ""),
        (Decimal("nan"), ""), ("half \ud83d", "half \ufffd"), ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
)  # fmt: skip
def test_texts(value: object, text: str) -> None:
    replaced: list[bool] = []
    assert text_of(value, lambda: replaced.append(True)) == text
    assert len(replaced) == ("\ufffd" in text)


@pytest.mark.parametrize("value", [["a"], {"a": 1}, True, False, b"\xff", datetime.date(2020, 1, 1), ("a",)])
def test_no_texts(value: object) -> None:
    with pytest.raises(ValueError, match="expected a text or a number, got "):
        text_of(value)


@pytest.mark.parametrize("text", ["", " ", "NaN", "NA", "n/a", "N/A", "None", "null", "<NA>", "#N/A"])
def test_missing_scores(text: str) -> None:
    assert not has_score(text)


def test_scores() -> None:
    assert [score_of(t) for t in ("4.5", " 1e-1 ", "-2", "true", "False", "TRUE")] == [4.5, 0.1, -2.0, 1.0, 0.0, 1.0]
    for text in ("inf", "1e999", "1_0", "4,5", "yes", "4.5.1", "\ud83d"):
        with pytest.raises(ValueError, match=r"expected a number as score, got '[^'\ud800-\udfff]*'"):
            score_of(text)


def test_titles_and_texts_of_a_retrieval_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A missing title is none, not the word nan; half of a surrogate pair is replaced, counted and its line named."""
    folder = written(tmp_path / "qa", [("d1", "T", "a"), ("d2", "", "b\ud83d"), ("d3", "\ude00", "c")], QUERIES, JUDGED)
    corpus = folder / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace('"T"', "NaN"))
    assert load_retrieval(str(folder)).documents == ["a", "b\ufffd", "\ufffd c"]
    assert f"{corpus}:2: half of a surrogate pair, which is no character; 2 texts have U+FFFD" in caplog.text
    corpus.write_text('{"_id": "d1", "text": ["a"]}\n')
    with pytest.raises(DataError, match=r":1: text: expected a text or a number, got \['a'\]"):
        load_retrieval(str(folder))
