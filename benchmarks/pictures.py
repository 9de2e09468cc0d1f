"""The pictures of docs/ and the output of its commands: the tutorial's study, run, confirmed and drawn by a reader's
commands. And the notebook of docs/examples with the output of its cells.

Writes docs/pictures: the live table as it stood in the middle of the search, every figure of `analysis plot`, the head
of the report and of the interactive page in Chromium, and under output/ what commands printed. No GPU, hub or data.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
NOTEBOOK = ROOT / "docs" / "examples" / "first_study.ipynb"
STUDY = "quickstart-1"
SEARCH = "search run quickstart --set metric.holdout=0.5"
BEFORE = {  # file -> the command whose output it holds
    "check": "search check quickstart",
    "status": f"search status {STUDY}",
    "best-before": f"analysis best {STUDY}",
    "forecast": f"search confirm {STUDY} --top 3 --seeds 5 --forecast",
}
CONFIRM = f"search confirm {STUDY} --top 3 --seeds 5"
AFTER = {"best-after": f"analysis best {STUDY}", "importance": f"analysis importance {STUDY}"}
COLUMNS = 100  # of the terminal
COLOURS = 64  # of a PNG


def run(runs: int) -> dict[str, Any]:
    """All of it anew; `runs` means nothing here."""
    del runs
    browser()  # before anything is run
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command(folder, SEARCH)
        before(folder)
        command(folder, CONFIRM)
        after(folder)
        notebook(folder / "notebook")
    made = sorted(str(p.relative_to(PICTURES)) for p in PICTURES.rglob("*.*"))
    return {"rows": [{"pictures": len(made), "seconds": time.perf_counter() - started}], "made": made}


def before(folder: Path) -> None:
    """What the search has left under `folder`/runs, in words, and its table in mid-search."""
    for name, typed in BEFORE.items():
        say(folder, name, typed)
    table(folder)


def after(folder: Path) -> None:
    """The confirmed study: in words, all figures, the two pages."""
    for name, typed in AFTER.items():
        say(folder, name, typed)
    command(folder, f"analysis plot {STUDY} --out plots")
    for figure in sorted((folder / "plots").glob("*.png")):
        shrink(figure, PICTURES / "gallery" / figure.name, 900)
    command(folder, f"analysis report {STUDY}")
    screenshot(folder / f"{STUDY}.html", PICTURES / "report.png")
    screenshot(folder / "plots" / "interactive.html", PICTURES / "interactive.png")


def command(folder: Path, typed: str) -> str:
    """What it prints; its faults are shown."""
    words, environment = shlex.split(typed), surroundings()
    return subprocess.run(words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, check=True).stdout


def surroundings() -> dict[str, str]:
    """A reader's environment, without what this machine has set."""
    here = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    without = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "SEARCH_", "RAY_ADDRESS"))}
    return without | here | {"COLUMNS": str(COLUMNS)}


def notebook(folder: Path) -> None:
    """Execute the notebook in an empty `folder` and keep what its cells gave."""
    import nbformat

    ran = executed(folder)
    for cell in ran.cells:
        cell.metadata.pop("execution", None)  # when it was run
    nbformat.write(ran, NOTEBOOK)  # type: ignore[no-untyped-call]


def executed(folder: Path) -> Any:
    """The notebook with what its cells gave in `folder`. Raises: CellExecutionError where one of them fails."""
    import nbformat
    from nbclient import NotebookClient

    folder.mkdir(parents=True, exist_ok=True)
    ran = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(ran, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=surroundings())
    return ran


def say(folder: Path, name: str, typed: str) -> None:
    target = PICTURES / "output" / f"{name}.txt"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = command(folder, typed).replace(str(folder), ".").replace(str(ROOT), ".")
    target.write_text(f"$ {typed}\n{text}", encoding="utf-8")


def table(folder: Path) -> None:
    """The live table at the moment when 60 % of the points had been seen, from the study's journal."""
    from rich.console import Console
    from rich.text import Text

    from search.console.display import trial_table
    from search.space import load_space
    from search.store.journal import read
    from search.store.ledger import Ledger
    from search.wording import best_trials, headline

    study = folder / "runs" / STUDY
    space, ledger, now = load_space(study / "space.yaml"), Ledger(), 0
    for event in read(study / "tracking.jsonl"):
        ledger.apply(event)
        now = event["t"]
        if len(ledger.tried) >= 0.6 * (space.search.trials or 0) and event["e"] == "eval":
            break
    running = [record for record in ledger.open_trials.values() if record.state == "running"]
    assert ledger.best is not None
    shown = running + best_trials(ledger, 8, paused=True)
    rows, dropped = trial_table(shown, space, COLUMNS, ledger.best.trial.id, {})
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text(headline(space, ledger, now), style="bold"), rows)
        if dropped:
            console.print(Text(f"not shown at {COLUMNS} columns: {', '.join(dropped)}", style="dim"))
        svg = console.export_svg(title=SEARCH)
    head, _, rest = svg.partition("@font-face")  # whose files lie on another host
    tail = rest[rest.rindex("}", 0, rest.index("-matrix")) + 1 :]
    (PICTURES / "table.svg").write_text(head + tail, encoding="utf-8")


def shrink(source: Path, target: Path, width: int) -> None:
    from PIL import Image

    target.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.open(source).convert("RGB")
    picture.thumbnail((width, 10_000))
    picture.quantize(COLOURS).save(target, optimize=True)


def browser() -> str:
    """The path of Chromium. Raises: ClickException where there is none."""
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    if path := next(found, None):
        return path
    raise click.ClickException("Chromium is missing: it draws report.png and interactive.png")


def screenshot(page: Path, target: Path, width: int = 1000, height: int = 1300) -> None:
    with tempfile.TemporaryDirectory() as profile:
        shot = Path(profile) / "shot.png"
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={width},{height}", f"--screenshot={shot}", "--virtual-time-budget=15000",
        ]  # fmt: skip
        subprocess.run([browser(), *options, page.absolute().as_uri()], check=True, capture_output=True)
        shrink(shot, target, width)
