"""Opening the test sets: the averages of the papers, the record in MLflow, what is refused."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from memory_study import memory_study, run
from mlflow.exceptions import MlflowException
from small_store import SmallStore, fill
from trained_trials import TINY_GCLSR, trial_folder

from analysis.checkpoints import testing
from analysis.checkpoints.choice import baseline_trials, chosen_trials, exported_trial, have_weights, with_checkpoint
from analysis.checkpoints.openings import record_opening
from analysis.checkpoints.overlap import seen_sets
from analysis.checkpoints.testing import (
    TestResult,
    averages,
    default_sets,
    gains,
    load_sets,
    open_tests,
    score,
    summary,
    transfer_scores,
)
from analysis.checkpoints.trained import Trained, load_trained, read_spec
from analysis.commands.main import main
from analysis.errors import AnalysisError, InputError
from analysis.reading.store import find_study, open_store
from analysis.tables.record import openings, scores_by_configuration
from analysis.tables.study import Study, read_study
from analysis.writing.comparisons import gain_text
from trainables.contract.trial import TrialSpec
from trainables.data.sets import Pairs, load_corpus, load_pairs
from trainables.encoders.network import SentenceNetwork
from trainables.evaluation.metrics import cosines, spearman

pytestmark = pytest.mark.costly

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    """A study whose point c0000 (three confirming seeds) has weights of seeds 0 and 2."""
    made = SmallStore(tmp_path_factory.mktemp("store"))
    fill(made)
    for trial in ("c0000.0", "c0000.2"):
        trial_folder(made.folder / "small-1" / "trials" / trial, "edacse", "zh", seed=int(trial[-1]))
    return made


def study(store: SmallStore) -> Study:
    opened = open_store(store.uri)
    return read_study(opened, find_study(opened, "small-1"))


def test_averages_are_those_of_the_papers() -> None:
    sets = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
    english = dict(zip(sets, np.linspace(0.6, 0.8, 7), strict=True)) | {"sts12": 0.600049}  # 60.00 when rounded first
    rounded = [round(100 * v, 2) for v in english.values()]
    assert averages(english, "en") == {"avg_test": pytest.approx(round(sum(rounded) / 7, 2) / 100)}
    assert averages({k: v for k, v in english.items() if k != "sts14"}, "en") == {}
    chinese = {"atec": 0.3, "bq": 0.4, "lcqmc": 0.6, "pawsx": 0.1, "stsb": 0.7}
    assert averages(chinese, "zh") == {
        "avg_test": pytest.approx(0.42), "avg_without_stsb_test": pytest.approx(0.35),
    }  # fmt: skip


def test_scores_are_spearman_with_an_interval(tmp_path: Path) -> None:
    trained = load_trained(str(trial_folder(tmp_path / "t")))
    pairs = load_pairs("builtin", "test", "en")
    scores, metrics, similarities = score(trained, [pairs])
    mine = cosines(trained.embed(pairs.first), trained.embed(pairs.second))
    assert metrics == {"builtin_test": pytest.approx(spearman(mine, pairs.gold), abs=1e-6)}
    np.testing.assert_allclose(similarities["builtin_test"], mine, atol=1e-5)
    one = scores["builtin"]
    assert one.low < one.value < one.high
    # Against the bootstrap over pairs: 400 draws know a standard deviation to 4 %.
    rng = np.random.default_rng(0)
    draws = [spearman(mine[i], pairs.gold[i]) for i in (rng.integers(0, len(mine), len(mine)) for _ in range(400))]
    assert (one.high - one.low) / 2 == pytest.approx(1.96 * np.std(draws), rel=0.2)


def test_confirmed_best_is_chosen_and_seeds_without_weights_named(store: SmallStore) -> None:
    s = study(store)
    chosen = chosen_trials(s, [])
    assert list(chosen["trial"]) == ["c0000.0", "c0000.1", "c0000.2"]
    there, missing = with_checkpoint(s, chosen)
    assert list(there["trial"]) == ["c0000.0", "c0000.2"]
    assert missing == ["c0000.1"]
    assert exported_trial(s)["trial"] == there.sort_values("value")["trial"].iloc[-1]
    assert exported_trial(s, "c0000.0")["trial"] == "c0000.0"
    with pytest.raises(AnalysisError, match=r"of t0001; there are weights of: c0000\.0, c0000\.2"):
        with_checkpoint(s, chosen_trials(s, ["t0001"]))
    with pytest.raises(InputError, match="unknown trial 't001'; did you mean"):
        chosen_trials(s, ["t001"])


def test_every_opening_is_on_record(store: SmallStore) -> None:
    s = study(store)
    there, _ = with_checkpoint(s, chosen_trials(s, []))
    first = open_tests(s, there, "for the paper", now=NOW)
    assert first.earlier == ()
    assert [r.seed for r in first.results] == [100, 102]

    s = study(store)
    assert openings(s.stored) == ["2026-03-01T12:00:00+00:00: c0000.0, c0000.2 on builtin: for the paper"]
    run = next(run for run in s.stored_trials if run.tags["trial_id"] == "c0000.2")
    assert run.tags["test_opening.1"] == "2026-03-01T12:00:00+00:00"
    assert run.metrics["builtin_test"] == pytest.approx(first.results[1].metrics["builtin_test"])
    assert run.metrics["builtin_test_low"] < run.metrics["builtin_test"] < run.metrics["builtin_test_high"]
    assert s.store.artifact(run, "test_similarities.npz") is not None
    assert s.stored.tags["metric"] == "builtin_dev"  # nothing ranks by test

    second = open_tests(s, there.iloc[:1], "curious", now=NOW)
    assert second.earlier == tuple(openings(s.stored))
    assert len(openings(study(store).stored)) == 2

    # The study's folder has them, too; a run that lost them (another machine's older copy) does not count from 1 again.
    record = sorted((store.folder / "small-1" / "openings").glob("*.txt"))
    assert [file.name for file in record] == ["1.txt", "2.txt"]
    assert [file.read_text() for file in record] == openings(study(store).stored)
    third = record_opening(s, "t0001 on builtin", "again", NOW.replace(hour=13))  # `s` is as before the second
    assert (third.number, len(third.earlier)) == (3, 2)

    table = summary(first.results).set_index("metric")
    values = [r.metrics["builtin_test"] for r in first.results]
    assert table.loc["builtin_test", "mean"] == pytest.approx(np.mean(values))
    assert table.loc["builtin_test", "sd"] == pytest.approx(np.std(values, ddof=1))


def test_nothing_is_opened_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise MlflowException("Permission denied\nand more")

    s = replace(memory_study([{"a": 1}], [0.5], {}), stored=run(study_id="s", folder=str(tmp_path)))
    client = SimpleNamespace(log_batch=lambda *_, **__: None, log_artifacts=refused)
    monkeypatch.setattr(s.store, "_client", client, raising=False)
    opening = record_opening(s, "t0000 on builtin", "why", NOW)
    assert (tmp_path / "openings" / "1.txt").exists()
    client.log_batch = refused
    for write in (lambda: opening.log("r0", {"x_test": 0.5}), lambda: opening.log_files("r0", tmp_path)):
        with pytest.raises(AnalysisError, match=r"were opened \(test_opening\.1\), but .*Permission denied$"):
            write()
    with pytest.raises(AnalysisError, match=r"^nothing was opened: cannot write to .* memory: Permission denied$"):
        record_opening(s, "t0000 on builtin", "again", NOW)
    assert [file.name for file in (tmp_path / "openings").iterdir()] == ["1.txt"]  # nor does the folder show it


def test_nothing_is_opened_without_reason_weights_or_data(store: SmallStore) -> None:
    s = study(store)
    before = len(openings(s.stored))
    one = s.trials[s.trials["trial"] == "c0000.0"]
    with pytest.raises(InputError, match="reason"):
        open_tests(s, one, "  ")
    with pytest.raises(AnalysisError, match="no test set is available"):
        open_tests(s, one, "why", sets=["nosuchset"])
    with pytest.raises(AnalysisError, match="no checkpoint"):
        open_tests(s, s.trials[s.trials["trial"] == "t0001"], "why")
    assert len(openings(study(store).stored)) == before


def test_which_sets_selected_and_which_test() -> None:
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    assert default_sets(data) == ("builtin",)
    assert default_sets({"train": "wiki", "dev": ["stsb"], "language": "en"})[:2] == ("sts12", "sts13")
    assert default_sets({"train": "edacse-zh", "dev": ["stsb"], "language": "zh"}) == (
        "atec", "bq", "lcqmc", "pawsx", "stsb",
    )  # fmt: skip
    seen, unread = seen_sets(data, "builtin_dev")
    assert [(part, p.name) for part, p in seen] == [("dev", "builtin"), ("train", "builtin")]
    assert not unread
    assert [part for part, _ in seen_sets(data, "other_dev")[0]] == ["train"]


def test_test_file_is_read_as_the_study_reads_its_own(tmp_path: Path) -> None:
    for name, header in (("mine", "a,b,grade,score"), ("usual", "sentence1,sentence2,score,x"), ("other", "p,q,r,s")):
        (tmp_path / f"{name}.csv").write_text(f"{header}\none,two,1,9\nthree,four,2,8\nfive,six,3,7\n")
    files = [str(tmp_path / f"{name}.csv") for name in ("mine", "usual", "other")]
    columns = {"first": "a", "second": "b", "score": "grade"}
    sets, missing = load_sets([*files, "builtin"], "en", columns)
    assert [p.name for p in sets] == ["mine", "usual", "builtin"]
    assert [list(p.gold) for p in sets[:2]] == [[1, 2, 3], [1, 2, 3]]
    assert list(missing) == files[2:]
    assert "expected a column a (first)" in missing[files[2]]


def test_a_retrieval_set_needs_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my_test"
    (folder / "qrels").mkdir(parents=True)
    texts = [json.dumps({"_id": str(i), "title": "", "text": f"text {i}"}) + "\n" for i in range(2)]
    (folder / "corpus.jsonl").write_text("".join(texts))
    (folder / "queries.jsonl").write_text(texts[0])
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n0\t1\t1\n")
    monkeypatch.chdir(tmp_path)
    (found,), missing = load_sets(["my_test"], "en")
    assert (found.queries, missing) == (["text 0"], {})


def test_missing_dev_file_takes_no_score_along(
    store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read after the sets are opened and scored, to find overlaps."""
    gone = str(tmp_path / "mine.csv")

    def moved(folder: str) -> TrialSpec:
        spec = read_spec(folder)
        return replace(spec, data={**spec.data, "dev": [gone, "builtin"]}, metric="mine_dev")

    monkeypatch.setattr("analysis.checkpoints.testing.read_spec", moved)
    s = study(store)
    opened = open_tests(s, s.trials[s.trials["trial"] == "c0000.0"], "for the paper", now=NOW)
    assert "builtin_test" in opened.results[0].metrics
    assert list(opened.unread) == [gone]
    assert "does not exist" in opened.unread[gone]


def test_transfer_of_the_tasks_that_are_there(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {"pos": ["good", "nice", "dog"], "neg": ["bad", "poor", "dog"]}
    (tmp_path / "CR").mkdir()
    for kind, some in words.items():
        lines = [" ".join(rng.choice(some, 4)) for _ in range(60)]
        (tmp_path / "CR" / f"custrev.{kind}").write_text("\n".join(lines), encoding="latin-1")
    trained = load_trained(str(trial_folder(tmp_path / "t", "sda")))
    dev_vectors = trained.embed(["a dog"])
    scores = transfer_scores(trained, tmp_path)
    assert list(scores) == ["transfer_cr_test"]
    assert 0.7 < scores["transfer_cr_test"] <= 1
    np.testing.assert_array_equal(trained.embed(["a dog"]), dev_vectors)  # the pooling of STS is left as it was
    with pytest.raises(InputError, match="found none"):
        transfer_scores(trained, tmp_path / "t")


def test_two_configurations_are_never_one_mean() -> None:
    given = [("a.0", "a", 0, 0.7, False), ("b.0", "b", 0, 0.5, True), ("a.1", "a", 1, 0.8, False)]
    table = summary([TestResult(t, t, s, p, base, {}, {"stsb_test": v}, {}) for t, p, s, v, base in given])
    assert table["trials"].tolist() == ["a.0, a.1", "b.0"]
    assert table["mean"].tolist() == pytest.approx([0.75, 0.5])
    assert table["baseline"].tolist() == [False, True]
    assert pd.isna(table["sd"].iloc[1])  # one trial has no spread
    runs = [run(i, {"stsb_test": v}, point_id=p, trial_id=i) for i, p, v in (("a.0", "a", 0.7), ("b.0", "b", 0.5))]
    assert scores_by_configuration(runs)["mean"].tolist() == [0.7, 0.5]


def test_best_and_baseline_are_tested_and_paired_over_their_seeds(tmp_path: Path) -> None:
    made = SmallStore(tmp_path)
    fill(made)
    for trial, seed in (("c0000.0", 3), ("c0000.1", 4), ("c0000.2", 5), ("c0001.0", 6), ("c0001.2", 7)):
        trial_folder(made.folder / "small-1" / "trials" / trial, seed=seed)
    s = study(made)
    best = chosen_trials(s, [])
    baseline = baseline_trials(s, best)
    assert list(baseline["trial"]) == ["c0001.0", "c0001.1", "c0001.2"]
    assert have_weights(s, baseline) == [True, False, True]
    assert baseline_trials(s, baseline).empty  # the baseline itself is tested
    opened = open_tests(s, pd.concat([best, baseline[have_weights(s, baseline)]]), "for the paper", now=NOW)
    (gain,) = gains(opened.results)
    value = {r.trial: r.metrics["builtin_test"] for r in opened.results}
    by_hand = [value[f"c0000.{k}"] - value[f"c0001.{k}"] for k in (0, 2)]  # seeds 100 and 102 have both
    assert gain.seeds == 2
    assert gain.gain == pytest.approx(np.mean(by_hand), abs=1e-6)
    assert gain.low <= gain.pairs_low <= gain.gain <= gain.pairs_high <= gain.high
    assert gains(opened.results[:3]) == []  # no baseline among them
    text = gain_text([gain], "the paper's setting")
    assert "the 2 seeds that both have" in text
    assert f"{100 * gain.gain:+.2f}" in text
    assert "unknown" in gain_text([], "the paper's setting")


def test_retrieval_sets_are_opened_and_paired_over_their_queries(tmp_path: Path) -> None:
    made = SmallStore(tmp_path)
    fill(made)
    for trial, seed in (("c0000.0", 3), ("c0000.2", 5), ("c0001.0", 6), ("c0001.2", 7)):
        trial_folder(made.folder / "small-1" / "trials" / trial, seed=seed)
    folder = tmp_path / "questions_test"
    (folder / "qrels").mkdir(parents=True)
    pairs = load_pairs("builtin", "test", "en")
    seen = load_corpus("builtin", "en").columns["sentence"][0]
    queries = [*dict.fromkeys(pairs.first[:80]), seen]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "title": "", "text": t}) + "\n" for i, t in enumerate(pairs.second))
    )
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": t}) + "\n" for i, t in enumerate(queries))
    )
    judged = [f"q{i}\td{pairs.first.index(t) if t != seen else 0}\t1" for i, t in enumerate(queries)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")

    s = study(made)
    best = chosen_trials(s, [])
    trials = pd.concat([best, baseline_trials(s, best)])
    opened = open_tests(s, trials[have_weights(s, trials)], "the product's questions", [str(folder)], now=NOW)
    result = opened.results[0]
    trained = load_trained(str(made.folder / "small-1" / "trials" / "c0000.0"))
    found, documents = trained.embed(queries), trained.embed(pairs.second)
    cosine = found @ documents.T / np.linalg.norm(documents, axis=1)
    own = np.array([int(line.split("\t")[1][1:]) for line in judged])
    above = (cosine > cosine[np.arange(len(own)), own][:, None] + 1e-6).sum(1)
    expected = np.where(above < 10, 1 / np.log2(above + 2), 0.0)  # one relevant document: nDCG@10 is its discount
    assert result.metrics["questions_ndcg10_test"] == pytest.approx(expected.mean(), abs=0.01)
    interval = result.scores["questions_ndcg10"]
    assert interval.high - interval.value == pytest.approx(1.96 * expected.std() / len(own) ** 0.5, rel=0.1)
    (line,) = opened.overlaps
    assert line.startswith(f"questions test: 1 of its {len(queries)} queries (")
    assert "of data.train; its score is not one on unseen data" in line

    (gain,) = gains(opened.results)
    assert (gain.name, gain.over, gain.seeds) == ("questions_ndcg10", "queries", 2)
    value = {r.trial: r.metrics["questions_ndcg10_test"] for r in opened.results}
    by_hand = [value[f"c0000.{k}"] - value[f"c0001.{k}"] for k in (0, 2)]
    assert gain.gain == pytest.approx(np.mean(by_hand), abs=1e-6)
    assert gain.low <= gain.pairs_low < gain.gain < gain.pairs_high <= gain.high
    assert "paired over queries and the 2 seeds" in gain_text([gain], "the defaults")
    row = next(r for r in study(made).stored_trials if r.run_id == result.run_id)
    assert row.metrics["questions_ndcg10_test"] == pytest.approx(result.metrics["questions_ndcg10_test"])


def test_encoder_before_training_is_scored_apart(store: SmallStore) -> None:
    one = study(store)
    trials, _ = with_checkpoint(one, chosen_trials(one, []))
    (one_result,) = open_tests(one, trials, "a printed row", ["builtin"], now=NOW, untrained=True).results
    folder = str(store.folder / "small-1" / "trials" / "c0000.0")
    pairs = load_pairs("builtin", "test", "zh")
    before, after = (score(load_trained(folder, untrained=u), [pairs])[1]["builtin_test"] for u in (True, False))
    assert one_result.metrics == {"untrained_builtin_test": pytest.approx(before)}
    assert abs(before - after) > 1e-4
    found = next(r for r in study(store).stored_trials if r.run_id == one_result.run_id)
    assert found.metrics["untrained_builtin_test"] == pytest.approx(before)
    assert "untrained_builtin_test" not in set(scores_by_configuration([found])["metric"])
    assert "the start of c0000.0" in openings(study(store).stored)[-1]


@pytest.mark.parametrize(
    ("more", "said"),
    [(["--untrained"], None), (["--trial", "c0001.0"], "No gain to test: the tested point is the method's defaults"),
     ([], "Gain over the method's defaults, paired over pairs")],
)  # fmt: skip
def test_a_gain_is_unknown_only_where_there_may_be_one(store: SmallStore, more: list[str], said: str | None) -> None:
    trial_folder(store.folder / "small-1" / "trials" / "c0001.0", seed=6)
    words = ["test", "small-1", "--storage", str(store.folder), "--reason", "why", "--set", "builtin", *more]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert said in done.output if said else "Gain over" not in done.output, done.output


def test_the_recipe_of_a_library_is_no_paper() -> None:
    of_pairs = memory_study([{"a": 1}], [0.5], {"a": {"float": [0, 1]}}, space={"preset": "sentence_transformers"})
    assert of_pairs.baseline_name == "sentence-transformers' recipe"


def test_word_vectors_before_training_are_their_mean(tmp_path: Path) -> None:
    trained = load_trained(str(trial_folder(tmp_path / "g", "gclsr", params=TINY_GCLSR)), untrained=True)
    texts = load_pairs("builtin", "test", "en").first[:3]
    words = dict(zip(trained.source.words, trained.source.matrix, strict=True))
    for text, vector in zip(texts, trained.embed([*texts, "qqq"]), strict=False):
        known = [words[w] for w in re.sub("[^a-z]", " ", text.lower().replace("'", "")).split() if w in words]
        np.testing.assert_allclose(vector, np.mean(known, axis=0), atol=1e-6)
    assert not trained.embed(["qqq"]).any()


def test_one_network_at_a_time_is_in_memory(store: SmallStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(trained: Trained, sets: Sequence[Pairs], precisions: Sequence[str]) -> Any:
        seen.append(sum(isinstance(one, SentenceNetwork) for one in gc.get_objects()))
        return score(trained, sets, precisions)

    seen: list[int] = []
    monkeypatch.setattr(testing, "score", counted)
    gc.collect()
    before = sum(isinstance(one, SentenceNetwork) for one in gc.get_objects())
    s = study(store)
    there, _ = with_checkpoint(s, chosen_trials(s, []))
    open_tests(s, pd.concat([there, there]), "memory", now=NOW)
    assert seen == [before + 1] * 4
