"""The papers' result tables as data, with the rows that grids of ours run (`links`) and what is doubtful about them.

Numbers stand in published.yaml as printed, misprints included; nothing is corrected, notes say what is doubtful.
D-numbers are decisions of the method specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from analysis.errors import unknown
from analysis.papers.links import LINKS
from analysis.papers.rows import PaperRow


@dataclass(frozen=True)
class PaperTable:
    """A published table and the space that runs rows of it.

    name: what it is asked for by; parameter: searched along the rows, None if several are; elsewhere: label of a row
    that another space runs -> the name under which its runs are compared; unfit: metrics whose printed values are no
    target.
    """

    name: str
    space: str
    source: str
    table: str
    what: str
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...]
    unfit: frozenset[str]
    parameter: str | None
    elsewhere: dict[str, str]


_EDACSE_TABLES = tuple(f"table_{n}" for n in range(5, 16))
NOTES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("D14", "edacse", ("table_5", "table_6", "table_7"),
     "the row printed as 17,544 sentences (40 %) is a misprint for 175,460, which our grid runs"),
    ("D16", "edacse", _EDACSE_TABLES,
     "the paper prints the best of ten runs, chosen on the test sets; ours are means over seeds, chosen on dev"),
    ("D17", "edacse", _EDACSE_TABLES,
     "the STS-B column (25 to 31) is no target: the same set gives 68 without any training elsewhere; it lowers the "
     "printed means, so compare ATEC, BQ, LCQMC and PAWS-X"),
    ("D18", "edacse", ("table_12",),
     "the row no_operation equals the 1-mark row of Table 9, not the SimCSE baseline of Table 8 (35.87)"),
    ("D19", "edacse", ("table_5", "table_6", "table_13", "table_14", "table_15"),
     "rows of Tables 5/6 and 13/14 differ by whole numbers only; expect no exact reproduction"),
    ("D08", "simcse_paper_reference", ("table_3_dropout", "table_6_pooling", "table_7_hard_negative_weight",
                                       "table_d1_temperature", "table_d2_mlm"),
     "one seed in the paper; the seed alone moves BERT-base by 3.5 points between the extremes of 50 runs"),
    ("D26", "sda", ("table_4", "table_5", "table_7"),
     "Table 3 has delta 0.5 for all, the text calls 0.3 best for DN, which is run with both"),
    ("D35", "selfccl", ("table_4", "table_5"),
     "four epochs against the baselines' three; compare at equal steps (space selfccl_order_pacing_bert)"),
    ("D49", "gclsr", ("table_2", "table_3", "table_9"),
     "the headline rows repeat the cells of region sizes 1,1,1,1,1,1, not of 1,1,1,6,15,20"),
)  # fmt: skip


UNFIT = {"edacse": frozenset({"stsb_test", "avg_test"})}  # metrics of a source whose printed values are no target: D17


@cache
def published() -> dict[str, Any]:
    """published.yaml."""
    text = Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def paper_table(name: str) -> PaperTable:
    """A published table with all its rows, those that a space of ours runs with their parameters.

    Raises: InputError for an unknown name.
    """
    if name not in LINKS:
        raise unknown("table", name, LINKS)
    link = LINKS[name]
    entry = published()[link.source][link.table]
    elsewhere = {
        row.label: other
        for other, there in LINKS.items()
        if other != name and (there.source, there.table) == (link.source, link.table)
        for row in there.reader(entry)
        if row.params is not None
    }
    return PaperTable(
        name=name,
        space=link.space,
        source=link.source,
        table=link.table,
        what=entry.get("what", ""),
        rows=tuple(row for row in link.reader(entry) if row.cells),
        notes=tuple(notes(link.source, link.table)),
        unfit=UNFIT.get(link.source, frozenset()),
        parameter=link.parameter,
        elsewhere=elsewhere,
    )


def tables(name: str) -> list[PaperTable]:
    """All tables whose name begins with `name`: `edacse_table15` gives its three models.

    Raises: InputError if there is none.
    """
    found = [name] if name in LINKS else [known for known in LINKS if known.startswith(f"{name}_")]
    if not found:
        raise unknown("table", name, LINKS)
    return [paper_table(known) for known in found]


def notes(source: str, table: str) -> list[str]:
    """What is doubtful about a table: decisions, printed means that are not the mean of their cells, contradictions."""
    found = [f"{number}: {text}" for number, where, names, text in NOTES if where == source and table in names]
    checks = published()["mean_checks"]
    for row in checks["rows"]:
        check = dict(zip(checks["columns"], row, strict=True))
        if (check["source"], check["table"], check["kind"]) == (source, table, "mismatch"):
            found.append(
                f"row {check['row']}: the printed mean {check['printed_mean']} is not the mean of its cells, "
                f"{check['recomputed_mean']:.2f}"
            )
    return found
