"""Makes a retrieval set of BEIR's layout from a scored pair set: which sentence says the same?

    python -m benchmarks.paraphrase_retrieval stsb dev FOLDER [--language zh]

Documents are all distinct sentences of the split. A query is the first sentence of a pair whose score is in the top
fifth of the scale (STS-B: 4 or more of 5); the other sentences of such pairs are its relevant documents, of grade 1,
and of grade 2 where the score is the highest. A query is a document too, under its own id: evaluation leaves it out.
How it was made is written beside it, to datasheet.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, cast

import click

from trainables.data.sets import Pairs, load_pairs

TOP = 0.8  # of the scale: a paraphrase


def write(pairs: Pairs, folder: Path) -> dict[str, int]:
    """Write the set; its numbers of documents, queries and relevant documents."""
    highest = float(pairs.gold.max())
    ids = {text: f"s{i}" for i, text in enumerate(dict.fromkeys((*pairs.first, *pairs.second)))}
    judged: dict[str, dict[str, int]] = {}
    for a, b, score in zip(pairs.first, pairs.second, pairs.gold.tolist(), strict=True):
        if score >= TOP * highest and a != b:
            judged.setdefault(a, {})[b] = 2 if score == highest else 1
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    _lines(folder / "corpus.jsonl", [{"_id": name, "title": "", "text": text} for text, name in ids.items()])
    _lines(folder / "queries.jsonl", [{"_id": ids[text], "text": text} for text in judged])
    rows = [f"{ids[a]}\t{ids[b]}\t{grade}" for a, found in judged.items() for b, grade in found.items()]
    (folder / "qrels" / "dev.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n", "utf-8")
    counts = {"documents": len(ids), "queries": len(judged), "relevant": len(rows)}
    about = {"made_from": pairs.name, "revision": pairs.revision, "paraphrase_from": TOP * highest, **counts}
    (folder / "datasheet.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return counts


def _lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


@click.command()
@click.argument("name")
@click.argument("split", type=click.Choice(["train", "dev"]))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--language", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def main(name: str, split: str, folder: Path, language: str) -> None:
    """Make FOLDER from the SPLIT of the pair set NAME."""
    counts = write(load_pairs(name, cast(Literal["train", "dev"], split), language), folder)
    click.echo(f"{folder}: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
