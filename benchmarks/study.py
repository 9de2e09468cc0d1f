"""One study, three ways: which finds the best encoder for the Debian pairs in the same time?

    python -m benchmarks.study --minutes 30 --runs 3 --encoder FOLDER

Each way tunes all-MiniLM-L6-v2 on 4,000 query-passage pairs, selects by nDCG@10 on `debian_dev` and is scored on
`debian_test`, which nothing has selected by:

  product   `search init`, `search run`, `analysis export`: the commands of the README
  hf        sentence-transformers' `hyperparameter_search` with Optuna, as its documentation has it
  random    sentence-transformers' trainer in a loop over random values of the same hyperparameters

Each way runs in a process of its own, one at a time, on all cores; the clock starts with the process. An evaluation
after the end of the time does not count. The study also scores the untouched encoder and, for each seed, a training by
sentence-transformers with the recipe's defaults. One function scores all models.

benchmarks/results/study.json gets a row as soon as a way of a seed has finished. A later call with the same settings
measures only the missing rows, then draws docs/pictures/study.svg and prints the table of docs/study.md from the file.
A call interrupted by Ctrl-C or SIGTERM loses the way that was running.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from analysis.plots.style import BLUE, GREEN, GREY, ORANGE, style
from benchmarks.inputs import data_folder, write_lines
from benchmarks.plots import fingerprint

WAYS = ("product", "hf", "random")
PAIRS, LENGTH = 4000, 128
BATCHES = [16, 32, 64, 128]
DEFAULTS = {"learning_rate": 2e-5, "batch_size": 64, "temperature": 0.05}  # of the trainer's examples
CHILD = "import sys; from benchmarks.study import tune; tune(sys.argv[1])"
OUT = Path(__file__).parent / "results" / "study.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "study.svg"


class Queries:
    """A BEIR folder, and the nDCG@10 of every query."""

    def __init__(self, folder: Path) -> None:
        def texts(name: str) -> dict[str, str]:
            rows = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
            return {row["_id"]: f"{row.get('title', '')} {row['text']}".strip() for row in rows}

        self.corpus, self.queries = texts("corpus.jsonl"), texts("queries.jsonl")
        self.relevant: dict[str, dict[str, int]] = {}
        for line in next((folder / "qrels").glob("*.tsv")).read_text(encoding="utf-8").splitlines()[1:]:
            query, document, grade = line.split("\t")
            if int(grade) > 0:
                self.relevant.setdefault(query, {})[document] = int(grade)
        self.queries = {name: text for name, text in self.queries.items() if name in self.relevant}

    def scores(self, model: Any) -> list[float]:
        """(queries,) nDCG@10."""
        import numpy as np

        settings = {"normalize_embeddings": True, "batch_size": 64, "show_progress_bar": False}
        documents, names = model.encode(list(self.corpus.values()), **settings), list(self.corpus)
        ranked = np.argsort(-(model.encode(list(self.queries.values()), **settings) @ documents.T), axis=1)[:, :10]
        discounts = 1 / np.log2(np.arange(2, 12))
        found = []
        for query, order in zip(self.queries, ranked, strict=True):
            grades = self.relevant[query]
            gained = np.array([grades.get(names[i], 0) for i in order])
            ideal = np.array(sorted(grades.values(), reverse=True)[:10])
            found.append(float(gained @ discounts / (ideal @ discounts[: len(ideal)])))
        return found


def model_of(encoder: str) -> Any:
    """The encoder as sentence-transformers loads it."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(encoder, device="cpu")
    model.max_seq_length = LENGTH
    return model


def tune(case: str) -> None:
    """A way with sentence-transformers' trainer, in this process; writes what it evaluated and its best model."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
    from sentence_transformers.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.training_args import BatchSamplers
    from transformers import TrainerCallback

    from trainables.contract.limits import cores

    torch.set_num_threads(cores())
    given = json.loads(case)
    ends, folder = given["began"] + given["seconds"], Path(given["folder"])
    rows = [line.split("\t") for line in Path(given["train"]).read_text(encoding="utf-8").splitlines()[1:]]
    train = Dataset.from_dict({"anchor": [row[0] for row in rows], "positive": [row[1] for row in rows]})
    dev = Queries(data_folder() / "debian_dev")
    evaluator = InformationRetrievalEvaluator(
        dev.queries, dev.corpus, {query: set(found) for query, found in dev.relevant.items()}, name="dev"
    )
    record: dict[str, Any] = {"trials": []}

    class Deadline(TrainerCallback):  # type: ignore[misc]  # no types
        def on_step_end(self, *given: Any, **_: Any) -> None:
            given[2].should_training_stop |= time.time() > ends

    def arguments(values: dict[str, Any], seed: int) -> Any:
        return SentenceTransformerTrainingArguments(
            output_dir=str(folder / "checkpoints"),
            num_train_epochs=1,
            learning_rate=values["learning_rate"],
            per_device_train_batch_size=values["batch_size"],
            warmup_steps=0.1,
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )

    def judged(values: dict[str, Any], metrics: dict[str, float], model: Any) -> float:
        """Note an evaluation that came in time, and save the model if it is the best."""
        value = next(v for k, v in metrics.items() if k.endswith("cosine_ndcg@10"))
        if time.time() <= ends:
            if value > max((one["value"] for one in record["trials"]), default=-math.inf):
                model.save_pretrained(str(folder / "model"))
            record["trials"].append({"minute": (time.time() - given["began"]) / 60, "value": value, "params": values})
        return value

    def single(values: dict[str, Any], seed: int) -> None:
        model = model_of(given["encoder"])
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments(values, seed), train_dataset=train, evaluator=evaluator, callbacks=[Deadline()],
            loss=losses.MultipleNegativesRankingLoss(model, scale=1 / values["temperature"]),
        )  # fmt: skip
        trainer.train()
        judged(values, trainer.evaluate(), model)

    def searched() -> None:
        import optuna

        def space(trial: Any) -> dict[str, Any]:  # called after the model and its loss were made
            trainer.loss.scale = 1 / trial.suggest_float("temperature", 0.01, 0.1, log=True)  # type: ignore[union-attr]
            return {
                "learning_rate": trial.suggest_float("learning_rate", 2e-6, 2e-4, log=True),
                "per_device_train_batch_size": trial.suggest_categorical(
                    "per_device_train_batch_size", [16, 32, 64, 128]
                ),
            }

        trainer = SentenceTransformerTrainer(
            model=None, model_init=lambda: model_of(given["encoder"]), args=arguments(DEFAULTS, given["seed"]),
            train_dataset=train, evaluator=evaluator, callbacks=[Deadline()],
            loss=lambda model: losses.MultipleNegativesRankingLoss(model, scale=1 / DEFAULTS["temperature"]),
        )  # fmt: skip
        trainer.hyperparameter_search(
            hp_space=space, n_trials=1000, direction="maximize", backend="optuna", timeout=ends - time.time(),
            compute_objective=lambda metrics: judged({}, metrics, trainer.model),
            sampler=optuna.samplers.TPESampler(seed=given["seed"]),
        )  # fmt: skip

    if given["way"] == "hf":
        searched()
    elif given["way"] == "random":
        rng, number = random.Random(given["seed"]), 0
        while time.time() < ends:
            rate, temperature = math.exp(rng.uniform(math.log(2e-6), math.log(2e-4))), 0.01 * 10 ** rng.random()
            values = {"learning_rate": rate, "batch_size": rng.choice(BATCHES), "temperature": temperature}
            single(values, given["seed"] + number)
            number += 1
    else:
        single(DEFAULTS, given["seed"])
    (folder / "record.json").write_text(json.dumps(record))


def run_tuned(way: str, seed: int, seconds: float, encoder: Path, train: Path, folder: Path) -> dict[str, Any]:
    """A way with sentence-transformers' trainer: its evaluations, and its model under `folder`/model."""
    case = {
        "way": way, "seed": seed, "seconds": seconds, "encoder": str(encoder), "train": str(train),
        "folder": str(folder), "began": time.time(),
    }  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", CHILD, json.dumps(case)], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{way}: exit code {ended.returncode}: {ended.stderr.strip()[-800:]}")
    return dict(json.loads((folder / "record.json").read_text()))


def run_product(seed: int, seconds: float, encoder: Path, train: Path, folder: Path) -> dict[str, Any]:
    """The product's commands: their evaluations, and the model under `folder`/model."""
    settings = {
        "search.seed": seed, "search.trials": "null", "search.budget": "null",
        "params.max_length": LENGTH, "params.eval_max_length": LENGTH,
    }  # fmt: skip
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    bin_, environment = Path(sys.executable).parent, os.environ | {"SEARCH_CACHE_DIR": str(folder / "cache")}

    def command(*words: str) -> None:
        ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"{' '.join(words[:3])}: exit code {ended.returncode}: {ended.stderr.strip()[-800:]}")

    began, search = time.time(), str(bin_ / "search")
    dev = str(data_folder() / "debian_dev")
    command(search, "init", str(train), "--dev", dev, "--encoder", str(encoder), "--out", "space.yaml")
    given += ["--set", f"search.time={began + seconds - time.time():.0f}s"]
    command(search, "run", "space.yaml", "--name", "study", *given)
    command(str(bin_ / "analysis"), "export", "study", "--out", str(folder / "model"))
    return {"trials": evaluations(next((folder / "runs").glob("study*/tracking.jsonl")), began, seconds)}


def evaluations(journal: Path, began: float, seconds: float) -> list[dict[str, Any]]:
    """All evaluations of a study within the time, in their order."""
    found = []
    for line in journal.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["e"] == "eval" and event["t"] / 1000 <= began + seconds:
            minute = (event["t"] / 1000 - began) / 60
            found.append({"minute": minute, "value": event["value"], "trial": event["id"]})
    return found


def turns(runs: int) -> Iterator[tuple[str, int]]:
    """(way, seed) in the order of measurement: each way is first, second and third."""
    yield "untouched", 0
    for seed in range(runs):
        ways = [*WAYS, "defaults"]
        yield from ((way, seed) for way in ways[seed % 3 :] + ways[: seed % 3])


def stored(out: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The study in `out`, or an empty one.

    Raises: UsageError if it has other settings.
    """
    record = dict(json.loads(out.read_text(encoding="utf-8"))) if out.exists() else {**settings, "rows": []}
    for name, value in settings.items():
        if record[name] != value:
            message = f"{out}: {name}: expected {record[name]}, got {value}\nhint: name another file with --out"
            raise click.UsageError(message)
    return record


def complete(record: dict[str, Any], runs: int, measure: Callable[[str, int], dict[str, Any]], out: Path) -> None:
    """Measure the missing rows; `out` gets each as soon as it is there."""
    finished = {(row["way"], row["seed"]) for row in record["rows"]}
    for way, seed in turns(runs):
        if (way, seed) not in finished:
            record["rows"].append({"way": way, "seed": seed, **measure(way, seed)})
            out.parent.mkdir(exist_ok=True)
            draft = out.with_suffix(".draft")
            draft.write_text(json.dumps(record) + "\n", encoding="utf-8")
            draft.replace(out)  # a crash leaves the old file or the new one


COLOURS = {"product": BLUE, "hf": ORANGE, "random": GREEN, "defaults": GREY, "untouched": GREY}
LABELS = {
    "product": "this product", "hf": "sentence-transformers' search", "random": "random sweep",
    "defaults": "recipe's defaults", "untouched": "untouched encoder",
}  # fmt: skip


def interval(scores: list[list[float]]) -> tuple[float, float]:
    """Mean of (runs, queries) values, and half its 95 % interval over queries and runs."""
    import numpy as np

    values = np.array(scores)
    of_queries = values.mean(0).var(ddof=1) / values.shape[1]
    of_runs = values.mean(1).var(ddof=1) / len(values) if len(values) > 1 else 0.0
    return float(values.mean()), float(1.96 * np.sqrt(of_queries + of_runs))


def of_way(record: Mapping[str, Any], way: str) -> list[dict[str, Any]]:
    """The rows of a way, by seed."""
    return sorted((row for row in record["rows"] if row["way"] == way), key=lambda row: row["seed"])


def table(record: Mapping[str, Any]) -> str:
    """The table of docs/study.md, of the ways measured so far. Differences are paired by seed and query."""
    product, lines = {row["seed"]: row["test"] for row in of_way(record, "product")}, []
    for way, label in LABELS.items():
        if not (rows := of_way(record, way)):
            continue
        mean, half = interval([row["test"] for row in rows])
        alone = {row["seed"]: row["test"] for row in rows}
        if way == "untouched":
            alone = dict.fromkeys(product, rows[0]["test"])
        gain = "-"
        if way != "product" and (seeds := product.keys() & alone.keys()):
            more, spread = interval([[a - b for a, b in zip(product[s], alone[s], strict=True)] for s in seeds])
            gain = f"{100 * more:+.2f} ± {100 * spread:.2f}"
        evaluations = statistics.mean(len(row["trials"]) for row in rows)
        dev = 100 * statistics.mean(row["dev"] for row in rows)
        lines.append(
            f"| {label} | {len(rows)} | {evaluations:.0f} | {dev:.2f} | {100 * mean:.2f} ± {100 * half:.2f} | {gain} |"
        )
    head = ("way", "runs", "evaluations a run", "best dev", "test", "this product minus it")
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines])


def draw(record: Mapping[str, Any], picture: Path) -> None:
    """Best dev score against minutes, a line a run; test scores with intervals. Of the ways measured so far."""
    import numpy as np
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1))
        for way in WAYS:
            for number, one in enumerate(of_way(record, way)):
                minutes = [trial["minute"] for trial in one["trials"]]
                best = 100 * np.maximum.accumulate([trial["value"] for trial in one["trials"]])
                left.step(
                    [*minutes, record["minutes"]],
                    [*best, best[-1]],
                    where="post",
                    color=COLOURS[way],
                    label="" if number else LABELS[way],
                )
        left.set(xlabel="minutes", ylabel="best dev nDCG@10 x 100", title="While they search")
        left.legend(loc="best")
        measured = [way for way in LABELS if of_way(record, way)]
        for place, way in enumerate(measured):
            mean, half = interval([row["test"] for row in of_way(record, way)])
            right.errorbar(100 * mean, -place, xerr=100 * half, fmt="o", color=COLOURS[way], capsize=3)
        right.set_yticks([-place for place in range(len(measured))], [LABELS[way] for way in measured])
        right.set(xlabel="test nDCG@10 x 100, 95 % interval", title="On queries that selected nothing")
        figure.savefig(picture, metadata={"Date": None, "Description": f"data {fingerprint(record)}"})


@click.command()
@click.option("--minutes", default=30.0, show_default=True, help="of each way in each run")
@click.option("--runs", default=3, show_default=True, help="of each way, a seed each")
@click.option("--encoder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--pairs", default=PAIRS, show_default=True, help="to train on; few for a trial of the command")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, help="[benchmarks/results/study.json]"
)
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), default=PICTURE, help="[docs/pictures/study.svg]"
)
def main(minutes: float, runs: int, encoder: Path, pairs: int, out: Path, picture: Path) -> None:
    """Measure the missing runs of each way in turn; draw the plot and print the table."""
    from benchmarks.__main__ import machine

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes and folders are cleared away
    weights = hashlib.sha256((encoder / "model.safetensors").read_bytes()).hexdigest()[:16]
    record = stored(out, {"minutes": minutes, "pairs": pairs, "encoder": weights})
    test = Queries(data_folder() / "debian_test")
    with tempfile.TemporaryDirectory() as scratch:
        header, *rows = (data_folder() / "en_debian_pairs_train.tsv").read_text(encoding="utf-8").splitlines()
        train = write_lines(Path(scratch) / "pairs.tsv", [header, *random.Random(0).sample(rows, pairs)])

        def measure(way: str, seed: int) -> dict[str, Any]:
            found: dict[str, Any]
            folder = Path(scratch) / f"{way}-{seed}"
            folder.mkdir()
            inputs = seed, 60 * minutes if way != "defaults" else math.inf, encoder.resolve(), train, folder
            if way == "untouched":
                model = model_of(str(encoder.resolve()))
                found = {"trials": [], "dev": statistics.mean(Queries(data_folder() / "debian_dev").scores(model))}
            else:
                found = run_product(*inputs) if way == "product" else run_tuned(way, *inputs)
                if not found["trials"]:
                    raise SystemExit(f"{way}, seed {seed}: no evaluation within {minutes:g} minutes")
                model = model_of(str(folder / "model"))
                found["dev"] = max(one["value"] for one in found["trials"])
            found |= {"test": [round(score, 5) for score in test.scores(model)], "machine": machine()}
            click.echo(f"{way}, seed {seed}: dev {found['dev']:.4f}, test {statistics.mean(found['test']):.4f}")
            return found

        complete(record, runs, measure, out)
    draw(record, picture)
    click.echo(table(record))


if __name__ == "__main__":
    main()
