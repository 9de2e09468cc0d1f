"""Good space files: what they mean, parameter by parameter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from search import schema
from search.space import Space, check_spaces, load_space, paper_notes, paper_point, smoke, space_from
from search.space.space import evaluation_notes
from search.store.journal import Identity
from search.store.layout import StudyFolder
from search.tracking.runs import study_tags
from trainables.contract.formats import SPACE, stamp
from trainables.data.retrieval import dev_metrics

GOOD = """\
method: simcse
encoder: bert-base-uncased
data: {train: wiki, dev: [stsb, sickr]}
metric: {name: stsb_dev}
params:
  learning_rate: {float: [1e-5, 1e-4], log: true}
  batch_size: {choice: [32, 64]}
search: {trials: 8}
"""
GRID = GOOD.partition("params:")[0] + "search: {sampler: grid}\n"


def space_of(tmp_path: Path, text: str, *overrides: str) -> Space:
    path = tmp_path / "my space.yaml"
    path.write_text(text, encoding="utf-8")
    return load_space(path, overrides)


def test_a_space_is_typed(tmp_path: Path) -> None:
    space = space_of(tmp_path, GOOD)
    rate, batch = space.params.values()
    assert (rate.kind, rate.low, rate.high, rate.log, rate.count()) == ("float", 1e-5, 1e-4, True, None)
    assert (batch.kind, batch.values, batch.count()) == ("choice", (32, 64), 2)
    assert space.name == "my-space"
    assert space.preset == "simcse_unsup"
    assert space.data.dev == ("stsb", "sickr")
    assert space.cardinality() is None
    with pytest.raises(ValueError, match="learning_rate: continuous"):
        list(space.points())


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-5", 1e-5), ("1.0e-5", 1e-5), ("1E-5", 1e-5), ("+3e+2", 300.0), (".5", 0.5), ("1_000", 1000.0), ("5.", 5.0)],
)
def test_numbers_are_read_as_people_write_them(tmp_path: Path, written: str, value: float) -> None:
    found = space_of(tmp_path, GOOD, f"params.weight_decay={written}").constants["weight_decay"]
    assert (found, type(found)) == (value, float)


@pytest.mark.parametrize(
    ("written", "value"),
    [("8h", 28800), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("2d", 172800), ("600", 600), ("null", None)],
)
def test_times_are_read_in_seconds(tmp_path: Path, written: str, value: float | None) -> None:
    assert space_of(tmp_path, GOOD, f"search.time={written}").search.time == value


def test_anchors_aliases_and_merge_keys_work(tmp_path: Path) -> None:
    text = GOOD.replace(
        "params:\n",
        "params:\n  <<: [{dropout: 0.2, temperature: &tau 0.07}, {dropout: 0.3, max_length: 64}]\n"
        "  weight_decay: *tau\n  temperature: 0.1\n",
    )
    constants = space_of(tmp_path, text).constants
    assert constants == {"dropout": 0.2, "max_length": 64, "weight_decay": 0.07, "temperature": 0.1}


def test_extends_merges_sections_and_replaces_parameters(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("name: base\n" + GOOD)
    space = space_of(
        tmp_path, "extends: base.yaml\nparams: {learning_rate: {choice: [1e-5, 2e-5]}}\nsearch: {seed: 3}\n"
    )
    assert space.name == "my-space"  # its own, not the base's
    assert space.params["learning_rate"].written() == {"choice": [1e-5, 2e-5]}
    assert space.params["batch_size"].values == (32, 64)
    assert (space.search.trials, space.search.seed) == (8, 3)


def test_overrides_reach_any_leaf_and_the_last_one_wins(tmp_path: Path) -> None:
    space = space_of(
        tmp_path, GOOD, "params.learning_rate.float.0=1e-6", "data.dev.1=atec", "search.trials=5", "search.trials=6",
        "params.batch_size={grid: [8, 16]}", "train.epochs=2", "name=other",
    )  # fmt: skip
    assert space.params["learning_rate"].low == 1e-6
    assert space.data.dev == ("stsb", "atec")
    assert space.search.trials == 6
    assert space.params["batch_size"].values == (8, 16)
    assert space.constants["epochs"] == 2
    assert space.name == "other"


PRODUCT = "params:\n  batch_size: {grid: [32, 64]}\n  dropout: {float: [0.1, 0.5], step: 0.2}\n"
CONDITIONS = """
params:
  head: {grid: [none, mlp_bn], when: {pooling: cls}}
  pooling: {grid: [cls, avg, avg_top2]}
  dropout: {grid: [0.1, 0.2], when: {head: mlp_bn}}
"""
CONSTANT = "params: {pooling: avg, dropout: {grid: [0.1, 0.2], when: {pooling: [avg, cls], lr_decay: linear}}}\n"
LISTED = """
params: {batch_size: {grid: [32, 64]}}
points:
  - {learning_rate: 1e-5, dropout: 0.1}
  - {learning_rate: 3e-5}
"""


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (PRODUCT, [{"batch_size": b, "dropout": d} for b in (32, 64) for d in (0.1, 0.3, 0.5)]),  # the first slowest
        (CONDITIONS, [
            {"pooling": "cls", "head": "none"},
            {"pooling": "cls", "head": "mlp_bn", "dropout": 0.1},
            {"pooling": "cls", "head": "mlp_bn", "dropout": 0.2},
            {"pooling": "avg"},  # head is inactive, and so what depends on it
            {"pooling": "avg_top2"},
        ]),
        (CONSTANT, [{"dropout": 0.1}, {"dropout": 0.2}]),
        (LISTED, [
            {"batch_size": 32, "learning_rate": 1e-5, "dropout": 0.1},
            {"batch_size": 64, "learning_rate": 1e-5, "dropout": 0.1},
            {"batch_size": 32, "learning_rate": 3e-5},
            {"batch_size": 64, "learning_rate": 3e-5},
        ]),
    ],
)  # fmt: skip
def test_a_grid_is_its_exact_product(tmp_path: Path, text: str, points: list[dict[str, Any]]) -> None:
    space = space_of(tmp_path, GRID + text)
    assert list(space.points()) == points
    assert space.cardinality() == len(points)


def test_a_huge_countable_space_is_counted_without_listing(tmp_path: Path) -> None:
    space = space_of(
        tmp_path,
        GOOD.partition("params:")[0] + "search: {trials: 8}\nparams:\n"
        "  batch_size: {int: [2, 1000001]}\n  max_length: {int: [4, 503]}\n"
        "  dropout: {choice: [0.1, 0.2, 0.3], when: {batch_size: [64, 128]}}\n",
    )
    assert space.cardinality() == 999_998 * 500 + 2 * 500 * 3
    assert next(space.points()) == {"batch_size": 2, "max_length": 4}


def test_a_point_overrides_constant_preset_and_default(tmp_path: Path) -> None:
    space = space_of(tmp_path, GOOD, "preset=post_unsup", "params.max_length=48")
    values = space.values({"learning_rate": 2e-5, "batch_size": 32})
    assert values["temperature"] == 0.05  # default
    assert values["pooling"] == "cls_before_pooler"  # preset
    assert values["max_length"] == 48  # constant over the preset's 64
    assert (values["learning_rate"], values["batch_size"]) == (2e-5, 32)


def test_the_preset_follows_the_encoder_unless_none(tmp_path: Path) -> None:
    assert space_of(tmp_path, GOOD, "preset=none").preset is None
    assert space_of(tmp_path, GOOD, "encoder=roberta-base").preset == "simcse_unsup_roberta"
    assert space_of(tmp_path, GOOD, "encoder=my/folder").preset is None


def test_a_resolved_space_loads_to_the_same_space(tmp_path: Path) -> None:
    space = space_of(tmp_path, GOOD, "preset=post_unsup", "smoke={search: {trials: 2}}")
    again = space_of(tmp_path, space.to_yaml())
    assert again.resolved() == space.resolved()
    assert yaml.safe_load(space.to_yaml()) == space.resolved() | {"written_by": stamp(SPACE)}
    assert space_from(space.resolved()).resolved() == space.resolved()
    assert again.values({}) == space.values({})
    assert list(again.params) == list(space.params)
    assert space_of(tmp_path, GOOD, "params.dropout=0.2").resolved() != space.resolved()


def test_the_paper_point_is_the_nearest_to_the_published_setting(tmp_path: Path) -> None:
    space = space_of(tmp_path, GOOD)
    assert paper_point(space) == {"learning_rate": 3e-5, "batch_size": 64}
    assert paper_notes(space) == {}
    far = space_of(
        tmp_path, GOOD, "params.learning_rate.float=[1e-6, 1e-5]", "params.batch_size.choice=[8, 50, 100]",
        "params.dropout={float: [0.15, 0.45], step: 0.1}", "params.pooling={choice: [avg, avg_top2]}",
    )  # fmt: skip
    assert paper_point(far) == {"learning_rate": 1e-5, "batch_size": 50, "dropout": 0.15, "pooling": "avg"}
    assert paper_notes(far)["learning_rate"] == (
        "learning_rate: the default 3e-05 is not in the space; the baseline uses 1e-05"
    )
    large = space_of(
        tmp_path, GOOD, "encoder=bert-large-uncased", "params.learning_rate.float=[2e-5, 5e-5]", "params.dropout=0.2"
    )
    assert list(paper_notes(large).values()) == [
        "learning_rate: the value 1e-05 of preset simcse_unsup_large is not in the space; the baseline uses 2e-05",
        "dropout: the space fixes 0.2 in place of the default 0.1",
    ]
    assert len(paper_notes(far)) == 4
    folder, which = StudyFolder(str(tmp_path), "far-1"), Identity("uuid", "user", stored=True)
    assert study_tags(far, folder, which)[schema.MOVED].split(",") == list(paper_notes(far))
    assert schema.MOVED not in study_tags(space, folder, which)


def test_the_paper_point_of_listed_points_is_one_of_them(tmp_path: Path) -> None:
    text = GRID + "points:\n  - {learning_rate: 1e-5, batch_size: 64}\n  - {learning_rate: 3e-5, batch_size: 128}\n"
    space = space_of(tmp_path, text, "params.dropout={grid: [0.2, 0.3]}")
    point = paper_point(space)
    assert point in list(space.points())
    assert point == {"dropout": 0.2, "learning_rate": 1e-5, "batch_size": 64}


def test_paper_points_respect_conditions(tmp_path: Path) -> None:
    text = GRID + "params: {pooling: {grid: [avg, cls]}, head: {grid: [none], when: {pooling: avg}}}\n"
    assert paper_point(space_of(tmp_path, text)) == {"pooling": "cls"}


def test_names_of_mean_metrics_are_normalised(tmp_path: Path) -> None:
    space = space_of(tmp_path, GOOD, 'metric.name="mean( stsb_dev, sickr_dev )"')
    assert space.metric.name == "mean(stsb_dev,sickr_dev)"


@pytest.mark.parametrize(
    ("dev", "metric"),
    [
        ("[stsb]", "stsb_dev"),
        ("[NanoNQ, stsb]", "mean(NanoNQ_ndcg10_dev,stsb_dev)"),
        ("[my_beir]", "my_beir_ndcg10_dev"),
        ("[./my_beir]", "my_beir_ndcg10_dev"),
    ],
)
def test_without_a_metric_the_dev_sets_select(
    dev: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a folder beside, written with or without a slash."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_beir" / "qrels").mkdir(parents=True)
    space = load_space("retrieval", [f"data.dev={dev}"])
    assert space.metric.name == metric
    assert space_from(space.resolved()).metric.name == metric


@pytest.mark.parametrize(
    ("name", "language", "dev"),
    [
        ("retrieval", "en", "builtin_retrieval"),
        ("retrieval", "zh", "builtin_retrieval_zh"),
        ("similarity", "en", "builtin"),
    ],
)
def test_smoke_of_retrieval_sets_selects_on_the_builtin_one(name: str, language: str, dev: str) -> None:
    small = smoke(load_space(name, [f"data.language={language}"]))
    assert (small.data.dev, small.metric.name) == ((dev,), dev_metrics(dev)[0])


def test_the_holdout_share_is_stored_also_in_smoke(tmp_path: Path) -> None:
    space = space_of(tmp_path, GOOD, "metric.holdout=0.5")
    assert space.metric.holdout == 0.5
    assert space.resolved()["metric"] == {"name": "stsb_dev", "mode": "max", "holdout": 0.5}
    assert "holdout" not in space_of(tmp_path, GOOD).resolved()["metric"]
    assert smoke(space).metric.holdout == 0.5


def test_metrics_are_named_after_files_and_folders() -> None:
    names = [dev_metrics(s)[0] for s in ("stsb", "my/pairs.tsv", "/x/dev.set.jsonl.gz", "my/nfcorpus", "NanoNQ")]
    assert names == ["stsb_dev", "pairs_dev", "dev_set_dev", "nfcorpus_ndcg10_dev", "NanoNQ_ndcg10_dev"]


def test_smoke_scales_down_and_the_file_has_the_last_word(tmp_path: Path) -> None:
    space = space_of(
        tmp_path, GOOD, "params.batch_size={choice: [32, 512]}", "search.time=8h", "resources.gpus=1",
        "smoke={search: {trials: 3}, params: {learning_rate: {float: [1e-4, 1e-3], log: true}}}",
    )  # fmt: skip
    small = smoke(space)
    assert (small.encoder, small.data.train, small.data.dev, small.metric.name) == (
        "builtin:tiny", "builtin", ("builtin",), "builtin_dev",
    )  # fmt: skip
    assert small.params["batch_size"].values == (32, 64)
    assert small.params["learning_rate"].high == 1e-3
    assert (small.search.trials, small.search.time, small.resources.gpus) == (3, None, 0)
    assert small.values({})["max_examples"] <= 2000
    assert small.preset == space.preset  # the published values still hold, though the encoder is another


def test_smoke_keeps_the_axis_of_a_grid(tmp_path: Path) -> None:
    space = space_of(tmp_path, GRID + "params: {sample_size: {grid: [400000, 200000, 100000]}}\n")
    assert smoke(space).params["sample_size"].values == (2000, 1000, 500)


def test_smoke_caps_dimensions_at_the_builtin_encoder_s() -> None:
    assert smoke(load_space("whitening")).params["dimensions"].values == (None, 64, 43, 21)
    assert smoke(load_space("whitening", ["params.dimensions=256"])).base["dimensions"] == 64


@pytest.mark.usefixtures("real_data")
def test_check_prints_points_parameters_and_conditions(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        GRID + "params: {pooling: {grid: [cls, avg]}, head: {grid: [none, mlp_bn], when: {pooling: cls}}}\n"
    )
    lines = check_spaces([path])[0].lines()
    assert lines == [
        f"{path}: 3 points, exact grid",
        "  simcse on bert-base-uncased; selects on stsb_dev; pruner none",
        "  baseline: preset simcse_unsup, from SimCSE Table A.1, BERT-base",
        "  pooling: cls, avg",
        "  head: none, mlp_bn when pooling is cls",
        "  note: head: the default 'linear_tanh' is not in the space; the baseline uses 'none'",
    ]


@pytest.mark.parametrize(
    ("search", "first"),
    [
        (
            "{sampler: auto, trials: 60, repeats: 3}",
            "Gaussian process (sampler gp), up to 60 points, up to 3 seeds each",
        ),
        ("{sampler: tpe, time: 1h}", "tree-structured Parzen estimator (sampler tpe), any number of points"),
        ("{sampler: random, trials: 60}", "random points (sampler random), up to 60 points"),
    ],
)
def test_check_prints_sampler_points_and_seeds(search: str, first: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"method: pairs\nencoder: builtin:tiny\ndata: {{train: builtin, dev: [builtin], language: en}}\n"
        f"params: {{temperature: {{float: [0.01, 0.1]}}}}\nsearch: {search}\n"
    )
    lines = check_spaces([path])[0].lines()
    assert lines[0] == f"{path}: {first}"
    assert lines[2].startswith("  baseline: preset sentence_transformers, from sentence-transformers' documentation")


def test_checking_spaces_imports_no_heavy_library() -> None:
    code = (
        "import sys, search.space\n"
        "heavy = {'torch', 'ray', 'optuna', 'mlflow', 'transformers'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_auto_is_a_gaussian_process_but_stored_samplers_stay(tmp_path: Path) -> None:
    space = space_of(tmp_path, GOOD, "params.dropout={float: [0.1, 0.2], when: {batch_size: 64}}")
    assert space.search.sampler == "gp"
    stored = space.resolved()
    stored["search"]["sampler"] = "tpe"  # what `auto` took under conditions in earlier versions
    assert space_from(stored).search.sampler == "tpe"


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("{max_examples: 1000}", []),
        ("{eval_examples: 500, eval_steps: null}", []),
        ("{eval_examples: 500}", ["eval_examples: no effect: eval_steps 100, of preset post_unsup, wins"]),
        ("{eval_examples: 500, eval_steps: 7}", ["eval_examples: no effect: eval_steps 7 wins"]),
    ],
)
def test_eval_examples_without_effect_is_a_note(tmp_path: Path, train: str, expected: list[str]) -> None:
    space = space_of(tmp_path, f"{GOOD}preset: post_unsup\ntrain: {train}\n")
    assert [note.partition("; with")[0] for note in evaluation_notes(space)] == expected
