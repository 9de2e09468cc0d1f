"""Published tables: every link leads to printed numbers and to a grid that runs them; cells beside ours."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from memory_study import memory_study

from analysis.errors import InputError
from analysis.papers.compare import compare, comparisons, notes, paper_table, published, tables
from analysis.writing.comparisons import comparison_text
from trainables.contract.config import hyperparameters
from trainables.contract.registry import declared

ROOT = Path(__file__).parents[2]
SPACES = ROOT / "spaces" / "papers"


def method_of(space: str) -> str:
    written = yaml.safe_load((SPACES / f"{space}.yaml").read_text(encoding="utf-8"))
    return str(written["method"]) if "method" in written else method_of(written["extends"].removesuffix(".yaml"))


@pytest.mark.parametrize("space", comparisons())
def test_every_row_is_printed_and_runs(space: str) -> None:
    from search.space import load_space

    table = paper_table(space)
    assert any(row.params is not None for row in table.rows)
    loaded = load_space(str(SPACES / f"{table.space}.yaml"))
    known = hyperparameters(declared(method_of(table.space)).config)
    printed = {c for row in published()[table.source][table.table]["rows"] for c in row if isinstance(c, (int, float))}
    for row in table.rows:
        assert row.cells
        for value in row.cells.values():
            assert value in printed or round(value / 100, 4) in printed  # the post prints in [0, 1]
        for name, value in (row.params or {}).items():
            assert name in known
            param = loaded.params.get(name)
            allowed = param.values if param is not None else (loaded.base[name],)
            assert allowed is not None
            assert any(a == (pytest.approx(value) if isinstance(a, float) else value) for a in allowed), (name, value)


def test_rows_of_one_table_are_told_apart() -> None:
    for space in comparisons():
        rows = [row for row in paper_table(space).rows if row.params is not None]
        keys = {str([row.untrained, *sorted((k, str(v)) for k, v in (row.params or {}).items())]) for row in rows}
        assert len(keys) == len(rows), space


def test_misprints_are_translated_and_noted() -> None:
    table = paper_table("edacse_table05_bert")
    assert {row.label: (row.params or {})["sample_size"] for row in table.rows}["17544"] == 175460
    assert [note.split(":")[0] for note in table.notes][:3] == ["D14", "D16", "D17"]
    assert any("350920" in note and "36.34" in note for note in notes("edacse", "table_7"))


def test_tables_by_the_beginning_of_their_name() -> None:
    assert [t.name for t in tables("edacse_table15")] == [
        "edacse_table15_bert", "edacse_table15_roberta", "edacse_table15_roberta_large",
    ]  # fmt: skip
    assert [t.name for t in tables("edacse_table15_bert")] == ["edacse_table15_bert"]
    with pytest.raises(InputError, match="unknown table 'edacse_tabel15_bert'; did you mean 'edacse_table15_bert'"):
        tables("edacse_tabel15_bert")


def cells_of(space: str, study: Any) -> dict[tuple[str, str], dict[str, Any]]:
    rows = compare(paper_table(space), [study]).to_dict("records")
    return {(row["row"], row["metric"]): row for row in rows if not row["departs"]}


def test_cells_beside_ours() -> None:
    points = [{"max_marks": m} for m in (3, 3, 1, 2)]
    metrics = [{"atec_test": v, "stsb_test": 0.6} for v in (0.34, 0.36, 0.33)] + [{}]
    study = memory_study(points, [0.5, 0.6, 0.4, 0.3], {"max_marks": {"grid": [1, 2, 3]}},
                         stops=["completed", "completed", "completed", "failed:nan"], metrics=metrics)  # fmt: skip
    cells = cells_of("edacse_table09_bert", study)
    three = cells["3", "atec_test"]
    assert (three["published"], three["n"]) == (34.23, 2)
    assert three["ours"] == pytest.approx(35.0)
    assert three["sd"] == pytest.approx(np.sqrt(2))
    assert three["difference"] == pytest.approx(35.0 - 34.23)
    assert three["target"]
    assert not cells["3", "stsb_test"]["target"]  # D17
    assert np.isnan(cells["1", "atec_test"]["sd"])
    assert cells["2", "atec_test"]["n"] == 0
    assert np.isnan(cells["2", "atec_test"]["difference"])
    assert cells["3", "stsb_dev"]["ours"] == pytest.approx(55.0)  # what selected, beside what the paper prints
    assert np.isnan(cells["3", "stsb_dev"]["published"])


def test_gclsr_ablations_average_four_sets() -> None:
    four = {"sts12_test": 0.55001, "sts13_test": 0.72, "sts14_test": 0.66, "sts15_test": 0.75}
    study = memory_study([{"predictor_lr": None}], [0.5], {"predictor_lr": {"grid": [None, 1.0]}}, metrics=[four])
    cell = cells_of("gclsr_table06", study)["decay", "avg_sts12_15_test"]
    assert cell["ours"] == pytest.approx(67.0)
    assert cell["published"] == 65.87


@pytest.mark.parametrize("name", comparisons())
def test_no_printed_row_is_hidden(name: str) -> None:
    table = paper_table(name)
    cells = compare(table, [])
    entry = published()[table.source][table.table]
    shown = len({row for row in cells["row"] if not row.endswith("(delta 0.3)")})  # a row that is run twice (D26)
    across = len(entry["columns"]) - 1 if table.parameter == "lambda" else 1
    assert shown == len(entry["rows"]) * across
    assert set(cells["from"]) <= {"printed", "run", *comparisons()}


def test_rows_that_another_space_runs_name_it() -> None:
    cells = compare(paper_table("selfccl_bert"), [])
    source = dict(zip(cells["row"], cells["from"], strict=True))
    assert len(source) == 30
    assert source["SelfCCL-BERTbase"] == "run"
    assert source["SelfCCL-SBERTbase"] == "selfccl_sbert"
    assert source["SimCSEsup-BERTbase"] == "simcse_headline_sup_bert"
    assert source["Glove embeddings (avg.)"] == "printed"
    assert {"SG-BERTbase", "SG-BERTbase (2)"} <= set(source)


@pytest.mark.parametrize(
    ("name", "row", "metric", "published_value"),
    [
        ("selfccl_bert", "SelfCCL-BERTbase", "avg_test", 81.8),
        ("gclsr_table03", "GCLSR-base", "transfer_avg_test", 81.77),
        ("simcse_headline_bert", "SimCSE-BERT-base", "avg_test", 76.25),
        ("simcse_headline_sup_bert", "SimCSEsup-BERTbase", "avg_test", 81.57),
        ("simcse_table04_qqp", "QQP 134k", "stsb_dev", 81.8),
        ("selfccl_table04_diffcse", "DiffCSE-BERTbase", "avg_test", 78.49),
        ("gclsr_table02", "word2vec avg", "avg_test", 44.16),
        ("gclsr_table02_bert", "BERT-base (first-last avg.)", "avg_test", 56.70),
    ],
)
def test_rows_are_linked_to_what_was_printed(name: str, row: str, metric: str, published_value: float) -> None:
    cells = compare(paper_table(name), [])
    cell = cells[(cells["row"] == row) & (cells["metric"] == metric)].iloc[0]
    assert (cell["from"], cell["published"]) == ("run", published_value)
    assert cells["ours"].isna().all()


def test_every_published_table_is_linked_or_explained() -> None:
    linked = {(link["source"], link["table"]) for link in comparisons().values()}
    said = set(re.findall(r"^\| `(\w+)\.(\w+)` \|", (ROOT / "docs" / "methods.md").read_text("utf-8"), flags=re.M))
    tables_of = {
        (source, table)
        for source, entries in published().items()
        if source not in ("mean_checks", "cross_checks")
        for table, entry in entries.items()
        if isinstance(entry, dict)
    }
    assert tables_of == linked | said
    assert not linked & said


SETTING = {"max_marks": 3, "batch_size": 32, "max_length": 64, "learning_rate": 3e-5}


def _trials(study_params: dict[str, str], *points: dict[str, Any]) -> Any:
    points = tuple({**SETTING, **p} for p in points)
    metrics = [{"avg_test": 0.37 + 0.01 * i} for i in range(len(points))]
    study = memory_study(points, [0.5] * len(points), {"max_marks": {"grid": [1, 2, 3]}}, metrics=metrics)
    return replace(study, stored=replace(study.stored, params=study_params))


PAPER = {"encoder": "google-bert/bert-base-chinese@1a2b3c", "data.train": "edacse-zh"}


@pytest.mark.parametrize(
    ("study_params", "point", "departs"),
    [
        (PAPER | {"encoder": "builtin:tiny", "data.train": "builtin"}, {}, "encoder builtin:tiny, trained on builtin"),
        (PAPER | {"encoder": "hfl/chinese-roberta-wwm-ext"}, {}, "encoder hfl/chinese-roberta-wwm-ext"),
        (PAPER | {"data.train": "mine.txt"}, {}, "trained on mine.txt"),
        (PAPER, {"max_length": 32}, "max_length 32"),
        (PAPER, {"batch_size": 64, "max_length": 32}, "batch_size 64, max_length 32"),
    ],
)
def test_other_settings_are_never_averaged(study_params: dict[str, str], point: dict[str, Any], departs: str) -> None:
    true = _trials(PAPER, {}, {})
    other = _trials(study_params, point)
    cells = compare(paper_table("edacse_table09_bert"), [true, other])
    mine = cells[(cells["row"] == "3") & (cells["metric"] == "avg_test")]
    assert dict(zip(mine["departs"], mine["n"], strict=True)) == {"": 2, departs: 1}
    assert mine["ours"].tolist() == pytest.approx([37.5, 37.0])


def test_rule_sets_are_not_mixed() -> None:
    points = [{"augmentation": "pi", "rule_set": r, "delta": 0.5} for r in ("official", "fixed")]
    study = memory_study(
        points, [0.5, 0.6], {"augmentation": {"grid": ["pi"]}}, metrics=[{"avg_test": 0.7}, {"avg_test": 0.8}]
    )
    cells = compare(paper_table("sda_table04_bert"), [study])
    mine = cells[(cells["row"] == "BERT PI") & (cells["metric"] == "avg_test")]
    assert dict(zip(mine["departs"], mine["ours"], strict=True)) == pytest.approx({"": 70.0, "rule_set fixed": 80.0})


def test_the_comparison_for_people() -> None:
    text = comparison_text(
        compare(paper_table("edacse_table09_bert"), [_trials(PAPER, {}, {}), _trials(PAPER, {"max_length": 32})])
    )
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.strip().startswith("3 "))
    assert lines[place + 1].split("ours, n 2")[1].split()[:2] == ["37.50", "±0.71"]
    assert "37.54*" in lines[place]
    assert lines[place + 3].strip().startswith("ours, n 1")
    assert lines[place + 3].endswith("  max_length 32")


def test_untrained_row_counts_its_score_once() -> None:
    """Seeds start from one encoder: its score counts once, and the trained network's stays out."""
    metrics = [{"stsb_test": 0.71, "untrained_stsb_test": 0.6825}] * 2
    points = [{"augmentation": "pi", "delta": 0.5, "augmentation_share": 1.0}] * 2
    study = memory_study(points, [0.5, 0.5], {"augmentation": {"grid": ["pi"]}}, metrics=metrics)
    cells = compare(paper_table("sda_table07_zh"), [study])
    row = cells[(cells["row"] == "Roberta-base (last CLS)") & (cells["metric"] == "stsb_test")].iloc[0]
    assert (row["published"], row["n"]) == (68.25, 1)
    assert row["ours"] == pytest.approx(68.25)


def test_cell_of_fewer_runs_shows_how_many() -> None:
    point = {"max_marks": 3}
    study = memory_study([point] * 3, [0.80, 0.81, 0.82], {"max_marks": {"grid": [3]}}, seeds=[0, 1, 2],
                         metrics=[{"stsb_test": 0.70}, {}, {}])  # fmt: skip
    cells = compare(paper_table("edacse_table09_bert"), [study])
    text = comparison_text(cells[cells.row == "3"])
    assert "ours, n 3" in text
    assert "70.00 (n 1)" in text


def test_settings_are_read_from_any_folder(tmp_path: Path) -> None:
    code = "from analysis.papers.compare import setting_of; print(setting_of('edacse_table09_bert').train)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "edacse-zh\n", done.stderr
