"""Tokens and other things computed once per content, shared through files; corpora that stay on the disk."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import signal
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainables.contract.errors import DataError
from trainables.contract.registry import declared
from trainables.data import eviction, sets
from trainables.data import files as lines
from trainables.data.files import LineTexts, read_lines
from trainables.data.sets import load_corpus
from trainables.data.tokens import (
    DiskCache,
    StoredTexts,
    TokenCache,
    TokenColumn,
    cache_dir,
    content_hash,
    tokenizer_encoder,
    tokenizer_fingerprint,
)
from trainables.methods.method import TextTools, tokenised_sentences

TEXTS = ["a bc", "", "ccc a", "a bc"]


def letters(texts):
    """One token per letter."""
    return [[ord(c) for c in text] for text in texts]


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, texts):
        self.calls += 1
        return letters(texts)


def test_tokens_are_computed_once_per_content(tmp_path):
    encode = Counting()
    column = TokenCache(encode, "letters", DiskCache(tmp_path)).tokenise(TEXTS)
    assert [row.tolist() for row in column] == letters(TEXTS)
    assert (column.flat.dtype, column.starts.dtype) == (np.int32, np.int64)
    again = TokenCache(encode, "letters", DiskCache(tmp_path)).tokenise(tuple(TEXTS))
    assert [row.tolist() for row in again] == letters(TEXTS)
    assert encode.calls == 1
    TokenCache(encode, "other tokenizer", DiskCache(tmp_path)).tokenise(TEXTS)
    TokenCache(encode, "letters", DiskCache(tmp_path)).tokenise(TEXTS[:-1])
    assert encode.calls == 3


def test_columns_are_shared_read_only_maps(tmp_path):
    column = TokenCache(letters, "f", DiskCache(tmp_path)).tokenise(TEXTS)
    assert isinstance(column.flat.base, np.memmap)
    assert type(column.flat) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        column.flat[0] = 1


def test_long_texts_are_cut_at_512_tokens(tmp_path):
    cache = TokenCache(letters, "f", DiskCache(tmp_path))
    assert len(cache.tokenise(["x" * 600])[0]) == 512
    assert len(cache.tokenise([])) == 0


@pytest.mark.parametrize(
    "damage", [lambda p: p.write_bytes(p.read_bytes()[:-4]), lambda p: p.write_bytes(b""), Path.unlink]
)
@pytest.mark.parametrize("suffix", [".flat.npy", ".starts.npy", ".pickle", ".npy"])
def test_damaged_files_are_made_anew(tmp_path, damage, suffix):
    def fill(cache):
        column = TokenCache(letters, "f", cache).tokenise(TEXTS)
        array = cache.cached("array", [1], lambda: np.arange(3))
        return [row.tolist() for row in column], array.tolist(), cache.cached("object", [1], lambda: {"a": [1, None]})

    expected = fill(DiskCache(tmp_path))
    (file,) = [p for p in tmp_path.iterdir() if p.name.endswith(suffix) and p.name.count(".") == suffix.count(".")]
    damage(file)
    assert fill(DiskCache(tmp_path)) == expected
    assert fill(DiskCache(tmp_path)) == expected
    assert not list(tmp_path.glob(".writing-*"))


def test_wrong_offsets_are_made_anew(tmp_path):
    TokenCache(letters, "f", DiskCache(tmp_path)).tokenise(TEXTS)
    (starts,) = tmp_path.glob("*.starts.npy")
    np.save(starts, np.array([0, 9, 4, 4, 13]))
    column = TokenCache(letters, "f", DiskCache(tmp_path)).tokenise(TEXTS)
    assert [row.tolist() for row in column] == letters(TEXTS)


def test_none_is_a_value_and_failures_are_not_stored(tmp_path):
    made = []
    for _ in range(2):
        assert DiskCache(tmp_path).cached("n", [], lambda: made.append(1)) is None
    assert made == [1]
    cache = DiskCache(tmp_path)
    with pytest.raises(RuntimeError):
        cache.cached("e", [], lambda: (_ for _ in ()).throw(RuntimeError()))
    assert cache.cached("e", [], lambda: 7) == 7


def _tokenise(folder):
    return TokenCache(letters, "f", DiskCache(Path(folder))).tokenise(TEXTS * 2000).flat.sum()


def test_racing_processes_agree(tmp_path):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        sums = pool.map(_tokenise, [str(tmp_path)] * 6, chunksize=1)
        pool.close()
        pool.join()  # else the end of `with` kills them, and waits for ever should one hold the queue's lock
    assert len(set(sums)) == 1
    assert len(list(tmp_path.glob("*.npy"))) == 2


def _prepare(folder, seconds):
    """An entry of a cold cache; who makes it notes its process."""

    def make():
        with Path(folder, "made").open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        return 7

    assert DiskCache(Path(folder)).cached("costly", [], make) == 7


@pytest.mark.parametrize("dies", [False, True])
def test_one_process_makes_an_entry_and_other_processes_wait(tmp_path, dies):
    """As the ranks of a node; they wait for no one that is gone."""
    fork = multiprocessing.get_context("fork")
    first = fork.Process(target=_prepare, args=(str(tmp_path), 60 if dies else 1))
    first.start()
    while not (tmp_path / "made").exists():
        time.sleep(0.01)
    others = [fork.Process(target=_prepare, args=(str(tmp_path), 0.5)) for _ in range(2)]
    for other in others:
        other.start()
    time.sleep(0.3)
    if dies:
        first.kill()
    for process in (first, *others):
        process.join(20)
    assert [process.exitcode for process in (first, *others)] == [-signal.SIGKILL if dies else 0, 0, 0]
    assert len((tmp_path / "made").read_text().split()) == (2 if dies else 1)


def test_different_contents_have_different_hashes():
    different = [
        ["ab", "c"], ["a", "bc"], ["abc"], "abc", b"abc", ["ab", ["c"]], [1, 2], [12], ["1", 2], [True], [None], [1.0],
        {"a": 1}, {"a": "1"}, np.array([1, 2]), np.array([1, 2], dtype=np.int32), np.array([[1, 2]]), [], {}, "",
        TokenColumn(np.array([1], dtype=np.int32), np.array([0, 1])),
    ]  # fmt: skip
    assert len({content_hash(d) for d in different}) == len(different)
    assert content_hash({"b": 1, "a": 2}) == content_hash({"a": 2, "b": 1})
    assert content_hash(("a", "b")) == content_hash(["a", "b"])
    with pytest.raises(TypeError, match="expected texts, numbers"):
        content_hash([object()])


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SEARCH_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("SEARCH_CACHE_DIR")
    assert cache_dir().name == "contrastive-search"


@pytest.fixture
def tokenizer(tmp_path):
    from transformers import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "run"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    return BertTokenizer(str(tmp_path / "vocab.txt"))


def test_hugging_face_tokenizer_without_special_tokens(tokenizer):
    encode = tokenizer_encoder(tokenizer)
    assert [list(row) for row in encode(["A dogs run", "x"])] == [[5, 6, 7, 8], [1]]
    from transformers import BertTokenizer

    same = BertTokenizer(vocab=tokenizer.get_vocab())
    cased = BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=False)
    assert tokenizer_fingerprint(same) == tokenizer_fingerprint(tokenizer) != tokenizer_fingerprint(cased)


# ------------------------------------------------------------ texts larger than memory
@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=6), max_size=40), st.data())
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


def test_cache_deletes_what_was_used_longest_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By size and by age; what a running trial may map stays, and a missing entry is made anew."""
    cache, day = DiskCache(tmp_path), 86_400.0

    def make(name: str, days_ago: float) -> None:
        DiskCache(tmp_path).cached(name, [], lambda: np.zeros(1000))
        for path in tmp_path.glob(f"{name}-*"):
            os.utime(path, (time.time() - days_ago * day,) * 2)

    (tmp_path / "mine-notes.txt").write_text("of the user")
    os.utime(tmp_path / "mine-notes.txt", (0, 0))

    def there() -> set[str]:
        return {path.name.partition("-")[0] for path in tmp_path.iterdir()}

    make("ancient", eviction.CACHE_DAYS + 1)
    make("old", 20)
    make("used", 30)
    cache.cached("used", [], lambda: pytest.fail("made again"))
    assert there() == {"mine", "old", "used"}
    monkeypatch.setattr(eviction, "CACHE_BYTES", 100)
    make("new", 0)
    assert there() == {"mine", "used", "new"}
    assert len(cache.cached("old", [], lambda: np.zeros(1000))) == 1000
    eviction.clear(tmp_path)
    assert there() == {"mine"}
