"""Published tables: every link leads to printed numbers and to a grid that runs them; cells beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from memory_study import memory_study

from analysis.compare import compare
from analysis.errors import InputError
from analysis.published import LINKS, notes, paper_table, published, tables
from trainables.configs import CONFIGS
from trainables.knobs import knobs

SPACES = Path(__file__).parents[2] / "spaces" / "papers"


def method_of(space: str) -> str:
    written = yaml.safe_load((SPACES / f"{space}.yaml").read_text(encoding="utf-8"))
    return str(written["method"]) if "method" in written else method_of(written["extends"].removesuffix(".yaml"))


@pytest.mark.parametrize("space", LINKS)
def test_every_row_is_printed_and_runs(space: str) -> None:
    from search.space import load_space

    table = paper_table(space)
    assert table.rows
    loaded = load_space(str(SPACES / f"{space}.yaml"))
    known = knobs(CONFIGS[method_of(space)])
    printed = {c for row in published()[table.source][table.table]["rows"] for c in row if isinstance(c, (int, float))}
    for row in table.rows:
        assert row.cells
        for value in row.cells.values():
            assert value in printed or round(value / 100, 4) in printed  # the post prints in [0, 1]
        for name, value in row.params.items():
            assert name in known
            param = loaded.params.get(name)
            allowed = param.values if param is not None else (loaded.base[name],)
            assert allowed is not None
            assert any(value == a or (isinstance(a, float) and value == pytest.approx(a)) for a in allowed), (
                name,
                value,
            )


def test_rows_of_one_table_are_told_apart() -> None:
    for space in LINKS:
        rows = [sorted((k, str(v)) for k, v in row.params.items()) for row in paper_table(space).rows]
        assert len({str(r) for r in rows}) == len(rows), space


def test_a_misprint_is_translated_and_noted() -> None:
    table = paper_table("edacse_table05_bert")
    assert {row.label: row.params["sample_size"] for row in table.rows}["17544"] == 175460
    assert any(note.startswith("D14") for note in table.notes)
    assert any(note.startswith("D17") for note in table.notes)
    assert any(note.startswith("D18") for note in paper_table("edacse_table12_bert").notes)
    assert any("350920" in note and "36.34" in note for note in notes("edacse", "table_7"))


def test_tables_by_the_beginning_of_their_name() -> None:
    assert [t.space for t in tables("edacse_table15")] == [
        "edacse_table15_bert", "edacse_table15_roberta", "edacse_table15_roberta_large",
    ]  # fmt: skip
    assert [t.space for t in tables("edacse_table15_bert")] == ["edacse_table15_bert"]
    with pytest.raises(InputError, match="unknown table 'edacse_tabel15_bert'; did you mean 'edacse_table15_bert'"):
        tables("edacse_tabel15_bert")


def cells_of(space: str, study: Any) -> dict[tuple[str, str], dict[str, Any]]:
    rows = compare(paper_table(space), [study]).to_dict("records")
    return {(row["row"], row["metric"]): row for row in rows}


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


def test_without_runs_the_published_numbers_stand_alone() -> None:
    cells = compare(paper_table("selfccl_bert"), [])
    assert cells["published"].tolist()[-1] == 81.8
    assert cells["ours"].isna().all()
