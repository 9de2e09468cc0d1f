"""Tokens and other things computed once per content, shared through files."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from trainables.data.tokens import (
    DiskCache,
    TokenCache,
    TokenColumn,
    cache_dir,
    content_hash,
    tokenizer_encoder,
    tokenizer_fingerprint,
)

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


def test_none_is_a_value_and_failures_are_not_kept(tmp_path):
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
    assert len(list(tmp_path.iterdir())) == 2


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
