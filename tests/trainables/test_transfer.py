"""Transfer tasks from files in SentEval's layout."""

from __future__ import annotations

import numpy as np
import pytest

from trainables.contract.errors import DataError
from trainables.evaluation.transfer import TASKS, load_task, pair_features, transfer, transfer_average

GOOD, BAD = ("nice", "fine", "sweet"), ("awful", "dull", "sour")


def write(path, lines, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(lines).encode(encoding) + b"\n")


def sentence(rng, words):
    return " ".join([*rng.choice(["the", "a", "film", "plot"], rng.integers(1, 4)), str(rng.choice(words))])


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for file in ("MR/rt-polarity.pos", "CR/custrev.pos", "SUBJ/subj.objective", "MPQA/mpqa.pos"):
        write(tmp_path / file, [sentence(rng, GOOD) for _ in range(20)])
    for file in ("MR/rt-polarity.neg", "CR/custrev.neg", "SUBJ/subj.subjective", "MPQA/mpqa.neg"):
        write(tmp_path / file, [sentence(rng, BAD) for _ in range(20)])
    for part in ("train", "dev", "test"):
        rows = [f"{sentence(rng, words)}\t{label}" for _ in range(20) for label, words in enumerate((BAD, GOOD))]
        write(tmp_path / "SST/binary" / f"sentiment-{part}", rows)
    for name in ("train_5500.label", "TREC_10.label"):
        rows = [f"{c}:x {sentence(rng, (c.lower(),))} ?" for c in ("HUM", "LOC", "NUM") for _ in range(12)]
        write(tmp_path / "TREC" / name, rows, "latin-1")
    for part in ("train", "test"):
        rows = [f"{y}\t1\t2\t{(a := sentence(rng, GOOD))}\t{a if y else sentence(rng, BAD)}" for y in (0, 1) * 16]
        write(tmp_path / "MRPC" / f"msr_paraphrase_{part}.txt", ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows])
    return tmp_path


def bag_of_words(texts):
    words = sorted({"the", "film", *GOOD, *BAD, "hum", "loc", "num"})
    return np.array([[text.split().count(w) for w in words] for text in texts], dtype=np.float64)


@pytest.mark.costly
def test_every_kind_of_task_is_solved_by_telling_words(root):
    scores = transfer(root, bag_of_words, ["SUBJ", "SST2", "TREC", "MRPC"])
    assert list(scores) == ["SUBJ", "SST2", "TREC", "MRPC"]
    assert min(score.test for score in scores.values()) >= 95
    assert scores["MRPC"].f1 == 100.0
    assert transfer_average(scores) == round(sum(score.test for score in scores.values()) / 4, 2)
    blind = transfer(root, lambda texts: np.ones((len(texts), 2)), ["TREC"])
    assert blind["TREC"].test == pytest.approx(33.33)


def test_all_tasks_are_found(root):
    for task in TASKS:
        parts = load_task(root, task)
        assert list(parts) == {"SST2": ["train", "dev", "test"]}.get(
            task, ["train", "test"] if task in ("TREC", "MRPC") else ["all"]
        )
        for texts in parts.values():
            assert len(texts.first) == len(texts.labels) >= 32
            assert (texts.second is not None) == (task == "MRPC")


def test_order_is_by_tokens_then_label_as_in_senteval(tmp_path):
    write(tmp_path / "MR/rt-polarity.pos", ["c b a", "caf\xe9  z", ""], "latin-1")
    write(tmp_path / "MR/rt-polarity.neg", ["one", "x y"], "latin-1")
    texts = load_task(tmp_path, "MR")["all"]
    assert texts.first == [".", "one", "x y", "caf\xe9 z", "c b a"]
    assert texts.labels.tolist() == [1, 0, 0, 1, 1]


def test_pair_features():
    assert pair_features(np.array([[1.0, 4.0]]), np.array([[3.0, 2.0]])).tolist() == [[2, 2, 3, 8]]


def test_faults_are_found_before_anything_is_embedded(root):
    def never(texts):
        raise AssertionError(texts)

    (root / "CR/custrev.neg").unlink()
    with pytest.raises(DataError, match=r"custrev.neg: No such file .*SentEval"):
        transfer(root, never, ["MR", "CR"])
    write(root / "SST/binary/sentiment-dev", ["no label"])
    with pytest.raises(DataError, match="expected sentence, tab, 0 or 1, got 'no label'"):
        transfer(root, never, ["SST2"])
    write(root / "TREC/TREC_10.label", ["WHAT:x how"])
    with pytest.raises(DataError, match="expected a class of ABBR"):
        transfer(root, never, ["TREC"])
    with pytest.raises(ValueError, match=r"expected one of MR, .*got 'STS'"):
        transfer(root, never, ["STS"])
