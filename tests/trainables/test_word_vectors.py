"""Word vector files of every kind, words of sentences, vectors of unknown words."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from trainables.contract.declaration import WORD_VECTORS
from trainables.contract.errors import DataError
from trainables.encoders.locate import check_encoder
from trainables.encoders.word_vectors import (
    BUILTIN,
    PLACEHOLDER,
    WordTokenizer,
    corpus_words,
    load_vectors,
    read_vectors,
    unknown_id,
    unknown_vectors,
)

WORDS = ("the", "cat", "sat", "医院")
MATRIX = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


def word2vec_binary(separator: bytes = b"\n") -> bytes:
    rows = [w.encode() + b" " + v.astype("<f4").tobytes() for w, v in zip(WORDS, MATRIX, strict=True)]
    return b"4 5\n" + separator.join(rows)


def text(header: str = "", end: str = "\n") -> bytes:
    rows = [f"{w} {' '.join(map(repr, v.tolist()))}{end}" for w, v in zip(WORDS, MATRIX, strict=True)]
    return (header + "".join(rows)).encode()


FILES = {
    "binary": word2vec_binary(),
    "binary_without_line_feeds": word2vec_binary(b""),
    "word2vec_text": text("4 5\n", " \n"),
    "glove": text(),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_every_kind_of_file_gives_the_same_vectors(tmp_path: Path, kind: str, zipped: bool) -> None:
    path = tmp_path / "vectors"  # the content decides, not the name
    path.write_bytes(gzip.compress(FILES[kind]) if zipped else FILES[kind])
    vectors = read_vectors(path)
    assert vectors.words == WORDS
    assert vectors.dim == 5
    np.testing.assert_array_equal(vectors.matrix, MATRIX)
    some = read_vectors(path, {"sat", "医院", "absent"})
    assert some.words == ("sat", "医院")
    np.testing.assert_array_equal(some.matrix, MATRIX[2:])


def test_a_binary_file_larger_than_a_block(tmp_path: Path) -> None:
    matrix = np.random.default_rng(1).standard_normal((3000, 120)).astype("<f4")
    body = b"".join(b"w%d " % i + row.tobytes() + b"\n" for i, row in enumerate(matrix))
    (tmp_path / "v.bin").write_bytes(b"3000 120\n" + body)
    vectors = read_vectors(tmp_path / "v.bin")
    assert vectors.words[2999] == "w2999"
    np.testing.assert_array_equal(vectors.matrix, matrix)


def test_words_with_blanks_and_repeated_words(tmp_path: Path) -> None:
    (tmp_path / "glove").write_text("a 1 2\n. . 3 4\na 5 6\n")
    vectors = read_vectors(tmp_path / "glove")
    assert vectors.words == ("a", ". .")
    np.testing.assert_array_equal(vectors.matrix, [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"%PDF-1.7\nsome text\n", "expected word vectors .word2vec binary or text, GloVe text; also gzipped"),
        (b"", "expected word vectors"),
        (b"a 1 2\nb 1 2 3\n", ":2: expected a word and 2 numbers as before, got 3 numbers"),
        (b"2 3\na 1 2 3\nb 1 2\n", ":3: expected a word and 3 numbers as before, got 2 numbers"),
        (b"a 1 2\nb 1 x\n", "expected 2 numbers behind the word 'b', got other text"),
        (b"a 1 2\nb 1 nan\n", "expected finite numbers"),
        (b"3 2\na 1 2\nb 1 2\n", "expected 3 words as in its first line, got 2"),
        (b"4 6\n" + word2vec_binary()[4:], "expected 4 words of 6 numbers as in its first line, got the end"),
        (b"4 4\n" + word2vec_binary()[4:], "wrong dimension"),
        (word2vec_binary()[:-3], "got the end of the file in word 4"),
        (gzip.compress(word2vec_binary() * 50, mtime=0)[:-20], "the gzip file is damaged or cut off"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "v"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_vectors(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_no_file_and_no_wanted_word(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_vectors(str(tmp_path / "absent"), "en")
    (tmp_path / "v").write_bytes(FILES["glove"])
    with pytest.raises(DataError, match="got 4 words, and none of the 1 wanted ones"):
        read_vectors(tmp_path / "v", {"dog"})


def test_a_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its check finds it, and so do the trials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "vectors.txt").write_bytes(FILES["glove"])
    check_encoder("~/vectors.txt", WORD_VECTORS)
    assert load_vectors("~/vectors.txt", "en").words == WORDS


def test_english_words_are_cleaned_as_in_the_paper() -> None:
    tokenizer = WordTokenizer(["dont", "stop"], "en")
    assert tokenizer.words("Don't STOP-me\tnow, 3 times!") == ["dont", "stop", "me", "now", "times"]
    assert tokenizer.ids("Don’t stop") == [0, 1]
    assert tokenizer.ids("now") == [unknown_id("now")]
    assert tokenizer.words(" 12 ") == [PLACEHOLDER]


def test_chinese_is_cut_by_the_longest_known_word() -> None:
    tokenizer = WordTokenizer(["医院", "医", "在", "在医"], "zh")
    assert tokenizer.words("他在医院ok。") == ["他", "在医", "院", "ok"]
    assert tokenizer.ids("医院在") == [0, 2]
    assert {"医院", "院", "他在医院", "ok"} <= corpus_words(["他在医院ok。"], "zh")
    assert corpus_words(["It's 2"], "en") == {"its", PLACEHOLDER}
    with pytest.raises(ValueError, match="language: expected en or zh, got 'de'"):
        WordTokenizer([], "de")


def test_builtin_vectors_cover_their_corpus() -> None:
    from trainables.data.sets import load_corpus

    for language in ("en", "zh"):
        vectors = load_vectors(BUILTIN, language)
        tokenizer = vectors.tokenizer(language)
        ids = [i for s in load_corpus("builtin", language).columns["sentence"][:50] for i in tokenizer.ids(s)]
        assert max(ids) < len(vectors.words)
        assert np.mean(np.array(ids) < 0) < 0.05


def test_unknown_vectors_follow_word_and_seed_and_are_uniform() -> None:
    ids = np.array([unknown_id(f"word{i}") for i in range(400)])
    assert (ids < 0).all()
    assert unknown_id("zymurgy") == -1_208_300_484  # the same on every machine
    vectors = unknown_vectors(ids, 3, 300)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(unknown_vectors(ids[5:6], 3, 300), vectors[5:6])
    assert not np.array_equal(unknown_vectors(ids, 4, 300), vectors)
    assert 0.0999 < vectors.max() <= 0.1
    assert -0.1 <= vectors.min() < -0.0999
    assert vectors.std() == pytest.approx(0.1 / 3**0.5, rel=0.01)
    cosine = np.corrcoef(vectors) - np.eye(400)
    assert abs(cosine).max() < 0.35  # 80,000 pairs of standard deviation 0.058: six of them


@pytest.mark.real_data
def test_the_real_file(real_data: Path) -> None:
    wanted = corpus_words(["A man is playing a guitar.", "zyxt"], "en")
    vectors = read_vectors(real_data / "en_word2vec_8k_300d.bin.gz", wanted)
    assert set(vectors.words) == {"man", "is", "playing", "guitar"}
    assert vectors.matrix.shape == (4, 300)
    assert (vectors.tokenizer("en").ids("the zyxt") < np.zeros(2)).all()
