"""Records learning curves: `python -m benchmarks.curves.record TABLE... [--work FOLDER] [--pack]`.

Every point of a table is trained to its end with every seed, by `trainables` alone (no Ray, no study), on one thread.
A trial is one line of `FOLDER/TABLE.jsonl`, written when it ends: an interrupted recording goes on where it stopped.
The first seed of every table's points comes first. `--pack` writes what has been recorded as
`benchmarks/curves/TABLE.json.gz`, with its datasheet.

`--predicted N` continues a packed table with the N points for which its surrogate predicts the best values: searches
are led there, and random points cover it least. Without them most of a search's regret was its distance from a peak
that training does not have. Repeat it until training reaches what is predicted.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from benchmarks.curves.surrogate import Surrogate, table_of
from benchmarks.curves.tables import HERE, RECORDED, SEEDS, Inputs, make_inputs, points, space_of, trial_spec
from search.space import Space
from search.study.samplers import Point

WORK = HERE.parent / "results" / "curves"


def record(space: Space, inputs: Inputs, point: Point, seed: int, warm: Any) -> dict[str, Any]:
    """One trial to its end: at every evaluation the examples, the value, the held-out value and seconds.

    Seconds are of this process's one thread, so that other work on the machine does not count as training.
    """
    from trainables.contract.trial import Decision, Evaluation
    from trainables.training.trial import run_trial

    rows: list[list[float]] = []
    started = time.process_time()

    def report(evaluation: Evaluation) -> Decision:
        held_out = evaluation.metrics["held_out_dev"]
        seconds = round(time.process_time() - started, 3)
        rows.append([evaluation.rung, round(evaluation.value, 5), round(held_out, 5), seconds])
        return "go"

    with tempfile.TemporaryDirectory() as folder:
        outcome = run_trial(trial_spec(space, inputs, point, seed, folder), report, cache=warm)
    if outcome.stop.removeprefix("failed:") in ("data", "disk", "error"):
        raise RuntimeError(f"{point}: {outcome.reason}\n{outcome.traceback}")
    return {"point": point, "seed": seed, "stop": outcome.stop, "planned": space.values(point)["max_examples"],
            "curve": rows}  # fmt: skip


def recorded(file: Path) -> list[dict[str, Any]]:
    """The trials of a recording in progress; a half-written last line is none."""
    lines = file.read_text("utf-8").split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def pack(table: str, work: Path) -> Path:
    """Writes the table with its datasheet."""
    trials = recorded(work / f"{table}.jsonl")
    sheet = json.loads((work / f"{table}.sheet.json").read_text("utf-8"))
    sheet |= {"points": len({json.dumps(t["point"]) for t in trials}), "trials": len(trials),
              "columns of a curve": ["examples", "value", "held-out value", "CPU seconds"]}  # fmt: skip
    target = HERE / f"{table}.json.gz"
    text = json.dumps({"datasheet": sheet, "trials": trials}, ensure_ascii=False, separators=(",", ":"))
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    return target


def datasheet(table: str, space: Space, inputs: Inputs) -> dict[str, Any]:
    """What the recording was made of, by what, on what."""
    from benchmarks.__main__ import machine

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()
    return {"table": table, "commit": commit, "method": space.method, "machine": machine(), "threads": 1,
            **inputs.sources}  # fmt: skip


def cut_last_half_line(file: Path) -> None:
    """A line that a kill cut in two would spoil the next."""
    if file.exists():
        text = file.read_bytes()
        file.write_bytes(text[: text.rfind(b"\n") + 1])


def unpack(table: str, work: Path, sheet: dict[str, Any]) -> None:
    """A packed table's trials and datasheet, as a recording in progress; `sheet` is what goes on with it."""
    content = json.loads(gzip.decompress((HERE / f"{table}.json.gz").read_bytes()))
    lines = (json.dumps(trial, ensure_ascii=False, separators=(",", ":")) + "\n" for trial in content["trials"])
    work.mkdir(parents=True, exist_ok=True)
    (work / f"{table}.jsonl").write_text("".join(lines), encoding="utf-8")
    further = {"promised points": f"of commit {sheet['commit'][:7]}, on {sheet['machine']['cpu']}"}
    (work / f"{table}.sheet.json").write_text(json.dumps(content["datasheet"] | further, indent=1), encoding="utf-8")


def best_predicted(trials: list[dict[str, Any]], space: Space, seeds: int, count: int) -> list[Point]:
    """Points that lack seeds, of a recording that was interrupted; else the `count` that are predicted best."""
    had = {json.dumps(t["point"]): t["point"] for t in trials}
    seen = Counter(json.dumps(t["point"]) for t in trials)
    if lacking := [had[name] for name, n in seen.items() if n < seeds]:
        return lacking
    surrogate = Surrogate(table_of(trials, space))
    found = surrogate.predicted_best(count)
    for number, point in enumerate(found):
        print(space.name, number, f"predicted {surrogate.true_value(point):.5f}", file=sys.stderr)
    return found


@click.command()
@click.argument("tables", nargs=-1, type=click.Choice(RECORDED))
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), default=WORK, help="where recordings grow")
@click.option("--seeds", default=SEEDS, show_default=True)
@click.option("--predicted", "more", default=0, help="record so many of the points predicted best, instead")
@click.option("--pack", "packing", is_flag=True, help="write what has been recorded as TABLE.json.gz, and end")
def main(tables: tuple[str, ...], work: Path, seeds: int, more: int, packing: bool) -> None:
    """Record learning curves; every table without arguments."""
    tables = tables or RECORDED
    if packing:
        for table in tables:
            print(pack(table, work))
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is there

    import torch

    from trainables.training.trial import ProcessCache

    torch.set_num_threads(1)
    spaces = {table: space_of(table) for table in tables}
    inputs: dict[str, Inputs] = {}
    wanted: dict[str, list[Point]] = {}
    warm = ProcessCache()
    for seed in range(seeds):
        for table, space in spaces.items():
            file = work / f"{table}.jsonl"
            if table not in inputs:
                inputs[table] = make_inputs(table, work / table)
                sheet = datasheet(table, space, inputs[table])
                if not more:
                    (work / f"{table}.sheet.json").write_text(json.dumps(sheet, indent=1), encoding="utf-8")
                elif not file.exists():
                    unpack(table, work, sheet)
                cut_last_half_line(file)
                wanted[table] = best_predicted(recorded(file), space, seeds, more) if more else points(space)
            done = {(json.dumps(t["point"]), t["seed"]) for t in recorded(file)}
            for number, point in enumerate(wanted[table]):
                if (json.dumps(point), seed) in done:
                    continue
                trial = record(space, inputs[table], point, seed, warm)
                with file.open("a", encoding="utf-8") as f:
                    f.write(json.dumps(trial, ensure_ascii=False, separators=(",", ":")) + "\n")
                print(table, seed, number, trial["stop"], trial["curve"][-1:], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
