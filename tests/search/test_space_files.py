"""The shipped spaces: all load, all shrink to a smoke test, and the papers' grids are the published tables' rows."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from search.space import Space, check_spaces, load_space, nodes, paper_point, smoke, space_from
from search.space.nodes import Where
from trainables.contract.config import build
from trainables.contract.registry import declared, method_names

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "spaces").rglob("*.yaml"))
PRACTICAL = [path for path in FILES if path.parent.name == "spaces"]
PUBLISHED = yaml.safe_load((ROOT / "analysis" / "papers" / "published.yaml").read_text(encoding="utf-8"))

YOURS = (  # what a space names and you bring, all of it
    "params.sample_size: expected at most",
    "encoder './sbert-base-nli-v2': no such folder",
    *(f"data file '{file}': does not exist" for file in (
        "sts_sick_sentences.txt", "qqp_pairs.tsv", "flickr30k_pairs.tsv", "paranmt_pairs.tsv", "nli_neutral_pairs.tsv",
        "nli_contradiction_pairs.tsv", "nli_all_pairs.tsv",
    )),
)  # fmt: skip


def name(path: Path) -> str:
    return path.stem


def paper(stem: str) -> Space:
    return load_space(ROOT / "spaces" / "papers" / f"{stem}.yaml")


def rows(source: str, table: str) -> list[list[Any]]:
    return list(PUBLISHED[source][table]["rows"])


def column(stem: str, key: str) -> list[Any]:
    return [point[key] for point in paper(stem).points()]


def test_all_shipped_files_are_right_and_checked_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    plain = nodes.read_text

    def read_text(text: str, start: Where, *rest: Any) -> Any:
        parsed.append(start.file)
        return plain(text, start, *rest)

    monkeypatch.setattr(nodes, "read_text", read_text)
    monkeypatch.setattr(nodes, "_READ", {})
    start = time.process_time()
    problems = [line for checked in check_spaces(FILES) for line in checked.problems]
    assert time.process_time() - start < 3  # 0.4 s on a quiet machine; the promise is 1.2 s with Python's start
    assert len(parsed) == len(set(parsed)) == len(FILES)  # a base is parsed once, however many build on it
    assert [line for line in problems if not any(file in line for file in YOURS)] == []
    assert {load_space(path).method for path in PRACTICAL} == set(method_names())


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_trial_of_a_shipped_space_can_be_built(path: Path) -> None:
    space = load_space(path)
    assert space.name == path.stem
    assert space_from(space.resolved()).resolved() == space.resolved()
    for checked in (space, smoke(space)):
        config = declared(checked.method).config
        build(config, checked.values(paper_point(checked)))
        if checked.is_grid:
            points = list(checked.points())
            assert len(points) == checked.cardinality()
            for point in points:
                build(config, checked.values(point))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_smoke_is_small(path: Path) -> None:
    space = smoke(load_space(path))
    points = space.cardinality() if space.is_grid else space.search.trials
    assert points is not None
    assert points * space.search.repeats <= 16
    base = space.values(paper_point(space))
    assert base["max_examples"] <= 2000
    assert base["batch_size"] <= 64
    assert (space.data.dev, space.metric.name, space.resources.gpus) == (("builtin",), "builtin_dev", 0)


@pytest.mark.parametrize("path", PRACTICAL, ids=name)
def test_practical_searches_hold_the_published_setting(path: Path) -> None:
    space = load_space(path)
    assert not space.is_grid
    assert space.pruner.kind != "none"
    published = space.values({})
    outside = [n for n, v in paper_point(space).items() if v != published[n]]
    assert outside == []


COLUMNS = [  # a space, what it varies, the table whose first column prints the values
    ("edacse_table05_bert", "sample_size", "edacse", 5),
    ("edacse_table06_roberta", "sample_size", "edacse", 6),
    ("edacse_table07_roberta_large", "sample_size", "edacse", 7),
    ("edacse_table09_bert", "max_marks", "edacse", 9),
    ("edacse_table10_roberta", "max_marks", "edacse", 10),
    ("edacse_table11_roberta_large", "max_marks", "edacse", 11),
    *((f"gclsr_table{n:02d}", key, "gclsr", n) for n, key in (
        (4, "batch_size"), (5, "weight_decay"), (6, "predictor_lr"), (8, "warmup_epochs"), (9, "region_sizes"),
        (10, "augmentation"), (11, "group_size"),
    )),
    ("simcse_table_d2_mlm", "mlm_weight", "simcse_paper_reference", "d2_mlm"),
]  # fmt: skip
CELLS = {  # what a cell stands for; 17544 is a slip of the paper (D14)
    ("predictor_lr", "decay"): None, ("group_size", "no grouping"): 4096, ("mlm_weight", "none"): 0,
    ("sample_size", 17544): 175460,
}  # fmt: skip


@pytest.mark.parametrize(("stem", "key", "source", "table"), COLUMNS)
def test_a_grid_holds_the_printed_values(stem: str, key: str, source: str, table: object) -> None:
    printed = [CELLS.get((key, row[0]), row[0]) for row in rows(source, f"table_{table}")]
    if key == "region_sizes":
        printed = [[int(size) for size in cell.split(",")] for cell in printed]
    assert column(stem, key) == printed
    assert key != "sample_size" or paper(stem).values({})["max_marks"] == 0


@pytest.mark.parametrize(
    ("stem", "source", "table"),
    [
        ("sda_table06_roberta", "sda", "table_6"),
        ("sda_table07_zh", "sda", "table_7"),  # no untrained encoder, DN twice
        ("sda_table08_bert", "sda", "table_8"),
        ("sda_table09_roberta", "sda", "table_9"),
        ("simcse_table06_pooling_unsup", "simcse_paper_reference", "table_6_pooling"),
        ("simcse_table06_pooling_sup", "simcse_paper_reference", "table_6_pooling"),
    ],
)
def test_a_grid_has_a_point_for_every_row(stem: str, source: str, table: str) -> None:
    assert paper(stem).cardinality() == len(rows(source, table))


@pytest.mark.parametrize(("stem", "best"), [("table12_bert", 3), ("table13_roberta", 2), ("table14_roberta_large", 5)])
def test_edacse_alphabets_are_the_printed_ones(stem: str, best: int) -> None:
    points = list(paper(f"edacse_{stem}").points())
    assert points[0] == {"max_marks": 0}  # no_operation
    assert all(point["max_marks"] == best for point in points[1:])
    printed = [row[0].removeprefix("edacse_") for row in rows("edacse", f"table_{int(stem[5:7])}")]
    assert ["no_operation", *(point["alphabet"] for point in points[1:])] == printed


@pytest.mark.parametrize(("i", "model"), enumerate(("bert", "roberta", "roberta_large")))
def test_edacse_grids_hold_the_selected_settings(i: int, model: str) -> None:
    weights = PUBLISHED["edacse"]["table_15"]["columns"][1:]
    assert column(f"edacse_table15_{model}", "lambda") == weights
    best = max(zip(rows("edacse", "table_15")[i][1:], weights, strict=True))[1]
    assert paper_point(paper(f"edacse_table15_{model}")) == {"lambda": best}
    assert len(column(f"edacse_table08_{model}", "max_marks")) * 3 == len(rows("edacse", "table_8"))
    _, rate, batch, dropout, *_ = rows("edacse", "table_4")[model == "roberta_large"]
    chosen = {"learning_rate": rate, "batch_size": batch, "dropout": dropout}
    grid = list(paper(f"edacse_table04_{model}").points())
    assert len(grid) == 6 * 5 * 8
    assert chosen in grid
    assert paper_point(paper(f"edacse_table04_{model}")) == chosen
    ends = [(min(values), max(values)) for values in ([point[key] for point in grid] for key in chosen)]
    assert ends == [(1e-6, 5e-5), (8, 128), (0.1, 0.8)]


def test_sda_presets_are_the_settings_of_table_3() -> None:
    printed = {row[0]: row[1:] for row in rows("sda", "table_3")}
    for i, model in enumerate(("bert", "roberta", "zh")):
        values = paper(f"sda_table03_{model}").values({})
        assert [values[key] for key in ("learning_rate", "batch_size", "temperature", "delta")] == [
            printed[key][i] for key in ("learning_rate", "batch_size", "tau", "delta")
        ]


@pytest.mark.parametrize(("stem", "label"), [("sda_table04_bert", "BERT "), ("sda_table04_roberta", "RoBERTa ")])
def test_sda_edits_are_those_of_table_4(stem: str, label: str) -> None:
    names = [row[0] for row in rows("sda", "table_4")]
    own = [n.removeprefix(label) for n in names if n.startswith(label) and "+-" not in n]
    values = [paper(stem).values(p) for p in paper(stem).points()]
    assert list(dict.fromkeys(v["augmentation"] for v in values)) == [edit.lower() for edit in own]
    assert [v["delta"] for v in values] == [0.5, 0.5, 0.5, 0.3, 0.5]  # D26: DN with both
    assert {v["rule_set"] for v in values} == {"official"}
    as_printed = paper(f"{stem}_paper")
    assert [as_printed.values(p) for p in as_printed.points()] == [{**v, "rule_set": "paper"} for v in values]


def test_sda_figures_cover_the_stated_ranges() -> None:
    low, high = PUBLISHED["sda"]["stated_in_text"]["delta_range"]
    deltas = column("sda_figure_delta_roberta", "delta")
    assert (min(deltas), max(deltas), len(deltas)) == (low, high, 3 * 9)
    shares = column("sda_figure_share_roberta", "augmentation_share")
    assert (min(shares), max(shares), len(shares)) == (0.0, 1.0, 1 + 3 * 5)


def test_selfccl_spaces_hold_the_stated_settings() -> None:
    stated = PUBLISHED["selfccl"]["stated_in_text"]
    for model in ("bert", "sbert"):
        values = paper(f"selfccl_{model}").values({})
        assert values["batch_size"] == stated[f"batch_selfccl_{model}"]
        assert (values["margin"], values["epochs"]) == (stated["margin_m"], stated["epochs"])
        assert paper(f"selfccl_order_pacing_{model}").cardinality() == 3 * (3 + 1)
    assert stated["margin_m"] in column("selfccl_margin_bert", "margin")
    for name in ("selfccl_sbert", "selfccl_nli_v2"):
        assert paper(name).values({})["eval_examples"] == 275_601 // 10  # a tenth of an epoch (methods 5.5)


def test_gclsr_momentum_and_parts_are_the_printed_ones() -> None:
    cells = [row[0] for row in rows("gclsr", "table_7")]
    pairs = [(0.9, 0.8) if cell == "0.9 then 0.8" else (cell, cell) for cell in cells]
    assert [(p["momentum"], p["momentum_after_warmup"]) for p in paper("gclsr_table07").points()] == pairs
    own = [row for row in rows("gclsr", "table_2") if row[0].startswith("GCLSR")]
    assert paper("gclsr_table02").cardinality() == len(own)


def numbers(table: str) -> list[float]:
    return [row[0] for row in rows("simcse_paper_reference", table) if isinstance(row[0], float)]


def test_simcse_grids_are_the_printed_ones() -> None:
    stems = ("unsup_bert", "unsup_bert_large", "unsup_roberta", "unsup_roberta_large", "sup_bert", "sup_bert_large")
    for stem, row in zip(stems, rows("simcse_paper_reference", "table_a1"), strict=True):
        space = paper(f"simcse_table_a1_{stem}")
        assert space.cardinality() == 3 * 4
        assert paper_point(space) == {"learning_rate": row[3], "batch_size": row[2]}
    dropouts = numbers("table_3_dropout")
    grid = paper("simcse_table03_dropout")
    values = [grid.values(p) for p in grid.points()]
    assert [v["dropout"] for v in values if not v["same_mask"]] == dropouts
    assert [v["dropout"] for v in values if v["same_mask"]] == [0.1]
    grid = paper("simcse_table07_hard_negative")
    values = [grid.values(p) for p in grid.points()]
    assert [v["loss_form"] for v in values] == ["in_batch", "hard", "hard", "hard"]
    weights = [math.exp(v["hard_negative_weight"]) for v in values[1:]]
    assert weights == pytest.approx(numbers("table_7_hard_negative_weight"))
    taus = [row[0] for row in rows("simcse_paper_reference", "table_d1_temperature")[1:]]
    assert column("simcse_table_d1_temperature", "temperature") == taus
    assert paper("simcse_grid").cardinality() == 3 * 4 * len(dropouts) * len(taus)


def test_the_grids_of_the_post_are_its_tables() -> None:
    keys = ("learning_rate", "batch_size", "dropout")
    unsup = [row[:3] for row in rows("simcse_reproduction_post", "readme_unsup")]
    assert [[point[key] for key in keys] for point in paper("post_unsup").points()] == unsup
    sup = [row[1:4] for row in rows("simcse_reproduction_post", "readme_sup") if row[0] == "sup"]
    space = paper("post_sup")
    assert [[space.values(point)[key] for key in keys] for point in space.points()] == sup


def test_the_starting_spaces_cover_what_their_papers_tried() -> None:
    edacse, gclsr = load_space("edacse").params, load_space("gclsr").params
    assert (edacse["dropout"].low, edacse["dropout"].high) == (0.1, 0.8)
    assert {8000, 25000} <= set(edacse["sample_size"].values or ())
    printed = [row[0] for row in PUBLISHED["gclsr"]["table_9"]["rows"]]
    assert sorted(",".join(map(str, sizes)) for sizes in gclsr["region_sizes"].values or ()) == sorted(printed)
    assert None in (gclsr["predictor_lr"].values or ())  # decayed with the rest
    assert (gclsr["weight_decay"].low, gclsr["weight_decay"].high) == (1e-4, 1e-1)
