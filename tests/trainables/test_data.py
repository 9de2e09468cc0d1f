"""Sets by name and file: what is found, what is read, what is held out, and the errors when they are missing."""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dataset_hub import dataset_hub, run_with_hub

from trainables.contract.errors import DataError
from trainables.contract.trial import TrialSpec
from trainables.data import catalogue as sources
from trainables.data.catalogue import set_name
from trainables.data.checks import check_data
from trainables.data.sets import Pairs, held_out, load_corpus, load_pairs
from trainables.training.method_trial import inputs_key, load_inputs

ROOT = Path(__file__).parents[2]
ROWS = [("a b", "a c", "5"), ('said "so', "x", "0.5"), ("no gold", "y", ""), ("d", "e", "2")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty SEARCH_DATA_DIR."""
    monkeypatch.setenv(sources.DATA_DIR_VARIABLE, str(tmp_path))
    return tmp_path


def table(path, rows, header=("sentence1", "sentence2", "score")):
    path.write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n", encoding="utf-8")
    return path


def test_pairs_keep_quotes_and_drop_rows_without_gold(folder):
    table(folder / "en_stsb_dev.tsv", ROWS)
    pairs = load_pairs("stsb", "dev", "en")
    assert pairs.first == ["a b", 'said "so', "d"]
    assert pairs.gold.tolist() == [5.0, 0.5, 2.0]
    assert pairs.subset is None
    assert pairs.revision.startswith("sha256:")


def test_subsets_and_sets_without_split_in_their_file_name(folder):
    header = ("sentence1", "sentence2", "score", "subset")
    table(folder / "en_sts12.tsv", [("a", "b", "1", "news"), ("c", "d", "2", "web")], header)
    assert load_pairs("sts12", "test", "en").subset == ["news", "web"]
    with pytest.raises(
        DataError,
        match=r"'sts12' has no dev part; put en_sts12_dev.tsv into the folder .*; no en_sts12_dev.tsv in ",
    ):
        load_pairs("sts12", "dev", "en")


def test_a_dev_set_is_never_taken_from_another_part(folder):
    table(folder / "zh_bq_dev_half.tsv", ROWS)
    table(folder / "zh_bq_train_part.tsv", ROWS)
    assert sources.find_local("bq", "zh", "dev") is None
    assert sources.find_local("bq", "zh", "train").path.name == "zh_bq_train_part.tsv"


def test_pawsx_placeholders_are_left_out(folder):
    rows = [("NS", "甲", "0"), ("乙", "丙", "1"), ("丁", "NS", "1"), ("戊", "己", "0")]
    table(folder / "zh_pawsx_dev.tsv", rows)
    table(folder / "zh_pawsx_train.tsv", rows)
    assert load_pairs("pawsx", "dev", "zh").first == ["乙", "戊"]
    assert load_corpus("pawsx", "zh").columns["sentence"] == ["甲", "乙", "丙", "丁", "戊", "己"]


def test_edacse_corpus_has_distinct_sentences_of_the_local_parts(folder, caplog):
    table(folder / "zh_atec_train20k.tsv", [("甲", "乙", "1"), ("甲", "丙", "0")])
    table(folder / "zh_stsb_train.tsv", [("丙", "丁", "5")])
    corpus = load_corpus("edacse-zh", "zh")
    assert corpus.columns["sentence"] == ["甲", "乙", "丙", "丁"]
    assert [part.split(":")[0] for part in corpus.revision.split("+")] == ["atec", "stsb"]
    assert "no train part of bq, lcqmc, pawsx" in caplog.text
    spec = {"method": "edacse", "data": {"train": "edacse-zh", "dev": ["builtin"], "language": "zh"}}
    for local_only in (True, False):
        assert check_data(spec, local_only=local_only) == [
            "data set edacse-zh: the local folder has no train part of bq, lcqmc, pawsx"
        ]


def test_corpora_join_and_empty_lines_become_a_blank(folder):
    with gzip.open(folder / "en_wiki_sentences.txt.gz", "wt", encoding="utf-8") as file:
        file.write("One.\n\nTwo with\u0085 a control character.\n")
    table(folder / "en_nli_triplets.tsv", [("p", "q", "r"), ("p", "s", "t")], ("anchor", "positive", "negative"))
    assert load_corpus("wiki", "en").columns["sentence"] == ["One.", " ", "Two with\u0085 a control character."]
    assert load_corpus("nli", "en", "triplets").columns["negative"] == ["r", "t"]
    assert load_corpus("nli+wiki", "en").columns["sentence"][:6] == ["p", "q", "r", "s", "t", "One."]


@pytest.mark.parametrize("suffix", ["tsv", "csv", "csv.gz"])  # other kinds: test_data_from_anywhere
def test_any_table_with_named_columns(tmp_path, suffix):
    names = ["left", "right", "similarity"]
    rows = [("a, b", "c", "1.5"), ("d", "e\u2028f", "3"), ("g", "h", "")]
    path = tmp_path / f"mine.{suffix}"
    if suffix == "tsv":
        table(path, rows, names)
    else:
        text = io.StringIO(newline="")
        csv.writer(text).writerows([names, *rows])
        content = text.getvalue().encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    pairs = load_pairs(str(path), "dev", "en", {"first": "left", "second": "right", "score": "similarity"})
    assert (pairs.name, pairs.first, pairs.second) == ("mine", ["a, b", "d"], ["c", "e\u2028f"])
    assert pairs.gold.tolist() == [1.5, 3.0]
    assert load_corpus(str(path), "en", columns={"sentence": "right"}).columns["sentence"] == ["c", "e\u2028f", "h"]


def test_split_in_a_path_and_names_of_files(tmp_path):
    table(tmp_path / "my set_test.tsv", ROWS)
    path = str(tmp_path / "my set_{split}.tsv")
    assert len(load_pairs(path, "test", "en")) == 3
    assert load_pairs(path, "test", "en").name == set_name(path) == "my_set"
    with pytest.raises(DataError, match=r"my set_dev\.tsv': does not exist"):
        load_pairs(path, "dev", "en")


def test_truncated_gzip_is_a_one_line_error(folder):
    (folder / "en_wiki_sentences.txt.gz").write_bytes(gzip.compress(b"sentence\n" * 999)[:40])
    with pytest.raises(DataError, match="cannot be read as UTF-8 text") as error:
        load_corpus("wiki", "en")
    assert "\n" not in str(error.value)


def test_check_reports_every_problem_in_one_go(folder):
    (folder / "en_wiki_sentences.txt").write_text("A.\nB.\n")
    table(folder / "en_stsb_dev.tsv", ROWS)
    data = {"train": "wiki", "dev": ["stsb"], "language": "en"}
    check_data({"method": "simcse", "data": data, "metric": "stsb_dev"})
    with pytest.raises(DataError) as error:
        check_data(
            {
                "method": "selfccl",
                "data": {"train": "wiki", "dev": ["stsb", "stbs", "atec"], "language": "en"},
                "metric": "mean(stsb_dev, sickr_dev)",
            }
        )
    train, unknown, language, metric = str(error.value).splitlines()
    assert "expected a table with anchor, positive and negative" in train
    assert "did you mean 'stsb'?" in unknown
    assert "known for language zh only" in language
    assert metric == "metric: 'sickr_dev' is not measured; dev sets give: stsb_dev, stbs_dev, atec_dev"


def test_missing_set_error_names_places_and_remedy(folder):
    with pytest.raises(DataError) as error:
        load_corpus("lcqmc", "zh")  # the tests run with HF_HUB_OFFLINE
    message = str(error.value)
    assert "\n" not in message
    for part in (f"zh_lcqmc_train.tsv in {folder}", "C-MTEB/LCQMC@17f9b096f803", "SEARCH_DATA_DIR names"):
        assert part in message


@pytest.mark.costly
def test_hub_file_is_pinned_then_read_from_the_cache(tmp_path):
    code = (
        "from trainables.data.checks import check_data\nfrom trainables.data.sets import load_pairs\n"
        "check_data({'method': 'simcse', 'data': {'train': 'builtin', 'dev': ['stsb'], 'language': 'en'}})\n"
        "p = load_pairs('stsb', 'dev', 'en'); print(p.first, p.gold.tolist(), p.revision)"
    )
    known = sources.HUB["en", "stsb"]
    lines = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in (("a", "b", 5.0), ("c", "d", 1.0))]
    content = gzip.compress("\n".join(map(json.dumps, lines)).encode())
    files = {"train.jsonl.gz": b"", "validation.jsonl.gz": content}
    with dataset_hub(known.repo, known.revision, files) as hub:
        first = run_with_hub(hub, code, tmp_path)
    assert first.stdout.strip() == f"['a', 'c'] [5.0, 1.0] {known.repo}@{known.revision}", first.stderr
    assert not any("train.jsonl" in path for path in hub.requests)
    assert run_with_hub(hub, code, tmp_path).stdout == first.stdout  # the hub is gone
    started = time.monotonic()
    gone = run_with_hub(hub, code, tmp_path / "empty")
    assert time.monotonic() - started < 20  # not the half minute of the client's retries, for each of two questions
    assert "on the hub: " in gone.stderr.strip().splitlines()[-1]


@pytest.mark.real_data
@pytest.mark.usefixtures("real_data")
def test_real_sets_have_their_published_sizes():
    sizes = {("stsb", "dev", "en"): 1500, ("sickr", "test", "en"): 4927, ("sts12", "test", "en"): 3108,
             ("sts16", "test", "en"): 1186, ("stsb", "dev", "zh"): 1458, ("atec", "dev", "zh"): 20000,
             ("pawsx", "dev", "zh"): 1984, ("pawsx", "test", "zh"): 1975}  # fmt: skip
    for (name, split, language), size in sizes.items():
        assert len(load_pairs(name, split, language)) == size, (name, split, language)
    assert len(np.unique(load_pairs("lcqmc", "test", "zh").gold)) == 2


# ------------------------------------------------------------ held-out dev pairs
def pairs(n: int) -> Pairs:
    return Pairs("stsb", [f"a {i}" for i in range(n)], [f"b {i}" for i in range(n)], np.arange(float(n)), None, "r1")


def test_two_parts_make_the_whole_set() -> None:
    whole = pairs(1000)
    selecting, held = held_out([whole], 0.3)
    assert (selecting.name, held.name) == ("stsb", "stsb_held")
    assert sorted(selecting.first + held.first) == sorted(whole.first)
    assert len(held) == pytest.approx(300, abs=45)  # three standard deviations
    for part in (selecting, held):
        assert [f"a {int(g)}" for g in part.gold] == part.first  # scores stay with their sentences
        assert [f"b {int(g)}" for g in part.gold] == part.second
    assert selecting.revision == f"r1, {len(selecting)} of 1000 pairs"
    assert held_out([whole], 0.0) == (whole,)


def test_a_pair_stays_on_its_side_in_any_order() -> None:
    whole = pairs(200)
    turned = replace(whole, first=whole.first[::-1], second=whole.second[::-1], gold=whole.gold[::-1])
    assert sorted(held_out([turned], 0.5)[1].first) == sorted(held_out([whole], 0.5)[1].first)
    assert set(held_out([whole], 0.2)[1].first) < set(held_out([whole], 0.5)[1].first)


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"metric\.holdout: stsb has too few pairs \(3\) for two parts"):
        held_out([pairs(3)], 0.5)


def test_a_trial_evaluates_both_parts(tmp_path: Path) -> None:
    import torch

    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    spec = TrialSpec(method="simcse", encoder="builtin:tiny", data=data, metric="builtin_dev", folder=str(tmp_path))
    halved = replace(spec, holdout=0.5)
    assert inputs_key(spec) != inputs_key(halved)
    found = load_inputs(halved, torch.device("cpu"))
    assert [s.name for s in found.sets.sets] == ["builtin", "builtin_held"]
    assert found.record["revisions"].keys() >= {"builtin_dev", "builtin_held_dev"}


PAIR_ROWS = [("a", "b"), ("c", "d"), ("e", "f")]


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        (
            ("anchor", "positive"),
            None,
            r"column negative or hard_neg or neg \(negative\), got anchor, positive; add it$",
        ),
        (("anchor", "other"), None, r"or sent1 or pos \(positive\), got anchor, other; add it$"),
        (("anchor", "positive"), {"negative": "anchor"}, r"columns: anchor and negative are both anchor; .* one role"),
        (("text", "x"), {"anchor": "text", "positive": "text", "negative": "x"}, r"anchor and positive are both text"),
    ],
)
def test_columns_have_one_role_and_hints_name_free_ones(folder, header, columns, message):
    path = table(folder / "pairs.tsv", PAIR_ROWS, header)
    with pytest.raises(DataError, match=message):
        load_corpus(str(path), "en", "triplets", columns)


def test_sides_of_pairs_on_one_column_are_refused(folder):
    path = table(folder / "pairs_dev.tsv", ROWS)
    with pytest.raises(DataError, match="first and second are both sentence1"):
        load_pairs(str(path), "dev", "en", {"second": "sentence1"})


TEXTS = [f"sentence {i}" for i in range(300)]
PAIRS = [(TEXTS[i], TEXTS[i + 1], str(i % 5)) for i in range(0, 200, 2)]  # of 200 sentences


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (TEXTS[200:], []),
        (TEXTS[199:], []),  # half a percent: chance
        (TEXTS[150:], ["data.train wiki: holds 25% of stsb (dev), 25% of sts12 (test), by equal sentences"]),
    ],
)
def test_training_overlap_with_dev_and_sealed_sets_is_a_note(folder, train, expected):
    table(folder / "en_stsb_dev.tsv", PAIRS)
    table(folder / "en_sts12.tsv", PAIRS[::-1])
    (folder / "en_wiki_train.txt").write_text("\n".join(train))
    data = {"train": "wiki", "dev": ["stsb"], "language": "en"}
    assert check_data({"method": "simcse", "data": data}, local_only=True) == expected


def test_file_in_train_and_dev_is_rejected_and_copy_noted(folder):
    table(folder / "en_stsb_dev.tsv", PAIRS)
    table(folder / "en_sts12.tsv", PAIRS[::-1])
    table(folder / "copy.tsv", PAIRS)

    def check(train):
        data = {"train": train, "dev": ["stsb"], "language": "en"}
        return check_data({"method": "simcse", "data": data}, local_only=True)

    with pytest.raises(DataError, match=r"data.train sts12: .*en_sts12.tsv is the sealed test set sts12; train on "):
        check("sts12")
    with pytest.raises(DataError, match=r"en_stsb_dev.tsv is data.dev stsb; train on another file"):
        check(str(folder / "en_stsb_dev.tsv"))
    assert check(str(folder / "copy.tsv"))[0].endswith("copy.tsv has the content of data.dev stsb")
