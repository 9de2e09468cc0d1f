"""Corpora that stay on the disk: the lines and tokens of those read whole, in memory that does not grow with them."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainables.contract.errors import DataError
from trainables.contract.registry import declared
from trainables.data import files as lines
from trainables.data import sets
from trainables.data.files import LineTexts, read_lines
from trainables.data.sets import load_corpus
from trainables.data.tokens import DiskCache, StoredTexts, TokenCache, content_hash
from trainables.methods.method import TextTools, tokenised_sentences


def letters(texts):
    """One token per letter."""
    return [[ord(c) for c in text] for text in texts]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=6), max_size=40), st.data())
def test_the_lines_are_those_of_the_file_read_whole(tmp_path_factory, texts: list[str], data: st.DataObject) -> None:
    end, mark = data.draw(st.sampled_from(["\n", "\r\n"])), data.draw(st.sampled_from(["", "\ufeff"]))
    path = tmp_path_factory.mktemp("x") / "x.txt"
    path.write_bytes((mark + end.join(texts) + data.draw(st.sampled_from(["", end]))).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", 7)
        patch.setattr(lines, "LINES", 3)
        found = LineTexts([path], "x")
        whole = [line or " " for line in read_lines(path)]
        assert list(found) == whole
        assert len(found) == len(whole)
        first, last = sorted(data.draw(st.tuples(st.integers(-3, 45), st.integers(-3, 45))))
        assert found[first:last] == whole[first:last]
        assert [found[i] for i in range(-len(whole), len(whole))] == whole + whole
        with pytest.raises(IndexError):
            found[len(whole)]


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "IN_MEMORY", 10)


@pytest.mark.usefixtures("small_memory")
def test_a_large_corpus_is_left_on_the_disk(tmp_path: Path) -> None:
    for number, text in enumerate(("first line\n\nthird\n", "fourth\nfifth")):
        (tmp_path / f"part{number}.txt").write_text(text)
    corpus = load_corpus(f"{tmp_path}/part*.txt", "en")
    texts = corpus.columns["sentence"]
    assert isinstance(texts, StoredTexts)
    assert list(texts) == ["first line", " ", "third", "fourth", "fifth"]
    assert texts[1:4] == [" ", "third", "fourth"]
    (tmp_path / "packed").mkdir()
    for number in (0, 1):
        packed = gzip.compress((tmp_path / f"part{number}.txt").read_bytes())
        (tmp_path / "packed" / f"part{number}.txt.gz").write_bytes(packed)
    again = load_corpus(str(tmp_path / "packed"), "en").columns["sentence"]
    assert isinstance(again, StoredTexts)
    assert list(again) == list(texts)
    before = content_hash(texts)
    (tmp_path / "part1.txt").write_text("fourth\nfifth!")
    assert content_hash(load_corpus(f"{tmp_path}/part*.txt", "en").columns["sentence"]) != before


@pytest.mark.usefixtures("small_memory")
def test_faults_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"a line that is fine\n" * 3 + b"caf\xe9\nmore\n")
    with pytest.raises(DataError, match=r"x\.txt:4: cannot be read as UTF-8 text: 'utf-8' codec can't decode"):
        list(load_corpus(str(path), "en").columns["sentence"])
    path.write_bytes(b"one\rtwo\rthree")
    with pytest.raises(DataError, match=r"x\.txt:1: its lines end in CR alone"):
        load_corpus(str(path), "en")
    path.write_bytes(b"one line that is long")
    with pytest.raises(DataError, match="at least two to tell apart, got one"):
        load_corpus(str(path), "en")
    (tmp_path / "y.txt.gz").write_bytes(gzip.compress(b"some lines\n" * 99)[:-9])
    with pytest.raises(DataError, match=r"y\.txt\.gz: cannot be read"):
        load_corpus(str(tmp_path / "y.txt.gz"), "en")
    assert not list(tmp_path.glob("**/text-*"))


def test_tokens_are_the_same_from_memory_and_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_text("".join(f"line {'x' * (i % 7)} {i}\n" for i in range(300)) + "\n\n")
    made = []
    for limit in (1 << 26, 10):
        monkeypatch.setattr(sets, "IN_MEMORY", limit)
        monkeypatch.setattr("trainables.data.tokens.CHUNK", 64)
        cache = TokenCache(letters, "letters", DiskCache(tmp_path / str(limit)))
        tools = TextTools("en", None, None, cache, None, {"query": "Q: "})  # type: ignore[arg-type]
        columns = load_corpus(str(path), "en").columns
        made.append(tokenised_sentences(columns, declared("simcse").config(), 0, tools).columns["sentence"])
    np.testing.assert_array_equal(made[0].flat, made[1].flat)
    np.testing.assert_array_equal(made[0].starts, made[1].starts)
    assert "".join(map(chr, made[1][299])) == "Q: line xxxxx 299"
    assert "".join(map(chr, made[1][300])) == "Q:  "


def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 16 bytes a line, where lines and tokens begin, tokenising takes what one chunk takes."""
    monkeypatch.setattr(sets, "IN_MEMORY", 10)
    monkeypatch.setattr("trainables.data.tokens.CHUNK", 256)
    monkeypatch.setattr(lines, "BLOCK", 1 << 16)
    peaks = []
    for count in (2_000, 20_000):
        path = tmp_path / f"{count}.txt"
        path.write_text("a line of some fifty letters, give or take a few\n" * count)
        cache = TokenCache(letters, "letters", DiskCache(tmp_path / "cache"))
        tracemalloc.start()
        cache.tokenise(load_corpus(str(path), "en").columns["sentence"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 18_000 * 60  # read whole, the texts alone would be 97 bytes each, their tokens 200
