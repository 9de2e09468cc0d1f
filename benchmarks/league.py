"""The league of docs/league.md: every space of spaces/league searched and confirmed with real commands, then the table.

    python -m benchmarks.league FOLDER [--layers 3] [--method simcse ...]

The encoder is the first layers of all-MiniLM-L6-v2; the text 8,192 sentences of STS-B's train split and Wikipedia
(`benchmarks.inputs`); the dev set STS-B's. FOLDER holds them and the studies; called again it goes on.
The parser of SDA and SNCSE is the spaCy pipeline that SEARCH_BENCH_PARSER names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import click

from benchmarks.inputs import data_folder, first_layers, write_sentences
from trainables.contract.registry import declared

SPACES = Path(__file__).parents[1] / "spaces" / "league"
METHODS = [path.stem.removeprefix("league_") for path in sorted(SPACES.glob("*.yaml")) if "setting" not in path.stem]


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--layers", default=3, show_default=True, help="of the encoder")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), help="may be repeated [all]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="of every space; may be repeated")
def main(folder: Path, layers: int, methods: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Run the league in FOLDER and print its table."""
    folder.mkdir(parents=True, exist_ok=True)
    data_folder()
    encoder = folder / "encoder"
    if not (encoder / "config.json").exists():
        first_layers(encoder, layers)
        write_sentences(folder / "sentences.txt")
    given = [f"encoder={encoder}", f"data.train={folder / 'sentences.txt'}", *overrides]
    parser = os.environ.get("SEARCH_BENCH_PARSER")
    storage = ("--storage", str(folder / "runs"))
    for method in methods or METHODS:
        began = time.perf_counter()
        done = (folder / "runs" / method).exists()
        parses = [f"data.parser={parser}"] if parser and declared(method).parser else []
        sets = [word for setting in (*given, *parses) for word in ("--set", setting)]
        command("search", *(("resume", method) if done else ("run", SPACES / f"league_{method}.yaml", *sets)), *storage,
                *(() if done else ("--name", method)))  # fmt: skip
        command("search", "confirm", method, *storage, "--top", "1", "--seeds", "3")
        click.echo(f"{method}: {time.perf_counter() - began:.0f} s")
    command("analysis", "league", *storage)


def command(*words: object) -> None:
    """One command of the product; its failure is this one's."""
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
