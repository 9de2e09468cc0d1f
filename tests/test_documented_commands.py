"""Every command of README and docs/ runs as it stands, made small, in one folder and in the order of a reader.

Slow, and its steps build on each other: run the file whole. What cannot run here is listed, with what plays it.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from documented import BLOCKS, COMMANDS, ROOT, SHELL, SPACES, Block, at_hand

from analysis.commands.main import main as analysis
from search.cli.main import main as search
from search.store.journal import read

BIN = Path(sys.executable).parent
PROGRAMS = {"search": search, "analysis": analysis}

PLAYED = {  # in a test of their own: pattern of the command -> the file that plays it
    r"search .*--cluster cluster\.yaml.*": "tests/cluster/test_ray_up.py",  # a cloud of namespaces, as root
    r"search (status|confirm) search-1234.*": "tests/cluster/test_slurm.py",  # SLURM on this machine, as root
    r"search track STUDY --storage s3://.*": "tests/search/test_trials_file.py",  # from a folder
    r"analysis best short-1 .*": "tests/analysis/test_other_metric.py",
    r"analysis export short-1 .*": "tests/analysis/test_export.py",
    r"analysis test .* --precision .*": "tests/analysis/test_commands.py",
    r"search run docs/examples/st_simcse\.yaml": "tests/faults/test_sentence_transformers.py",  # minutes, killed twice
    r"analysis export --push-to-hub .*": "tests/analysis/test_publish.py",  # a server that speaks the hub's protocol
    r"analysis test .*--mteb mteb_task\.py": "tests/analysis/test_mteb.py",  # needs a file of pairs beside it
}
PARSED = {  # only held against the program's options (test_docs.py): pattern -> what they need
    r'analysis test .*--mteb (STSBenchmark|"MTEB).*': "MTEB's data sets, which it fetches from the hub",
}
OTHERS = {  # lines of other programs, by their first word -> who runs them, or what they need
    ".ci/run": "the checks themselves",
    "pre-commit": "its hooks are fetched from their repositories; .ci/run runs the same programs",
    "python3": ".ci/run runs README's first line",
    "pip": ".ci/run runs README's two lines; the other extras are in [test], or need a package index",
    "pytest": ".ci/run",
    "python": "benchmarks: minutes to hours; docs/ says which figures they gave",
    "mkdocs": "test_docs.py builds the site; `serve` does the same and stays",
    "uv": "a package index",
    "ray": "tests/cluster/test_ray_up.py",
    "chmod": "tests/cluster/test_ray_up.py",
    "sbatch": "tests/cluster/test_slurm.py",
    "export": "a server",
    "eval": "tests/test_documented_code.py",
    "hf": "an account of the hub",
    "gcloud": "an account of Google Cloud; docs/cluster/README.md says that nobody has run them",
    "ssh-keygen": "makes a key for Google Cloud",
    **dict.fromkeys(("aws", "sed", "for", "curl"), "tests/cluster/test_aws_page.py: a simulated AWS"),
}


@dataclass(frozen=True)
class Step:
    """One documented command. more: what makes it small. prints: what is in its output. how: "call", or what is done
    beside it: "begin" leaves it running, "watch" ends it by Ctrl-C, "stop" waits for what was begun."""

    text: str
    more: str = ""
    prints: str = ""
    how: str = "call"


FEW = "--smoke --set search.trials=2"
QUICK = "--set search.trials=9 --set train.max_examples=512 --set pruner.kind=none"
OWN = "--set encoder=my-encoder --set data.train=sentences.txt"
TINY = "--set data.dev=[builtin] --set metric.name=builtin_dev --set train.max_examples=64 --set train.eval_examples=32"
BUILTIN = "--set encoder=builtin:tiny --set data.train=builtin --set data.dev=[builtin] --set metric.name=builtin_dev"
LONG = BUILTIN + " --set train.max_examples=6000 --set train.eval_examples=500 --set resources.gpus=0"
PAIRS = "--set train.max_examples=64 --set train.eval_examples=32 --set resources.gpus=0"
DEBIAN = (
    "search run en_debian_pairs.yaml --set search.trials=4 --set search.repeats=1 --set search.budget=4"
    "  --set train.max_examples=800 --set train.eval_examples=800"
)
STORY = [
    Step("search run spaces/quickstart.yaml", QUICK, "study quickstart-1 is finished"),
    Step("search status quickstart-1", "", "9 of 9 points"),
    Step("analysis best quickstart-1", "", "Gain "),
    Step("search confirm quickstart-1 --top 3 --seeds 5 --forecast", "", "seeds"),
    Step("search confirm quickstart-1 --top 3 --seeds 5", "--top 1 --seeds 2", "is finished"),
    Step("search confirm quickstart-1", "--trials 2", "is finished"),
    Step("analysis importance quickstart-1", "", "learning_rate"),
    Step("analysis importance", "", "learning_rate"),
    Step("analysis report quickstart-1", "", "quickstart-1.html"),
    Step("analysis plot quickstart-1", "", "history.png"),
    Step("analysis export quickstart-1 --out model/", "", "model"),
    Step("analysis export quickstart-1", "", "quickstart-1"),
    Step("search run quickstart", QUICK, "study quickstart-2 is finished"),
    Step("analysis best quickstart", "", "Study quickstart-2"),
    Step("analysis report quickstart", "", "quickstart-2.html"),
    Step("search run quickstart --set metric.holdout=0.5", QUICK, "study quickstart-3 is finished"),
    Step("search check spaces/simcse_unsup.yaml --forecast", f"{OWN} {TINY}", "hours"),
    Step("search check spaces/simcse_unsup.yaml --forecast --price 2.5", f"{OWN} {TINY}", "2.5 per device-hour"),
    Step("search check spaces/simcse_unsup.yaml --set encoder=./my-encoder", "", "my-encoder"),
    Step("search run spaces/simcse_unsup.yaml --set search.trials=40", LONG, how="begin"),
    Step("search status", "", "simcse_unsup-1: running"),
    Step("search logs simcse_unsup-1 t0003", "", "t0003"),
    Step("search ui", "", "live page: http://127.0.0.1", how="watch"),
    Step("search stop simcse_unsup-1", "", "pauses", how="stop"),
    Step("search resume simcse_unsup-1", "--set search.trials=6", "study simcse_unsup-1 is finished"),
    Step("search confirm simcse_unsup-1 --forecast", "", "at most 20 trials"),
    Step("search confirm simcse_unsup-1", "--trials 2", "is finished"),
    Step("search confirm simcse_unsup-1 --top 3 --seeds 5", "--top 1 --seeds 2", "is finished"),
    Step("analysis best --metric stsb_dev", "--metric builtin_dev", "Study simcse_unsup-1"),
    Step("analysis best", "", "Study simcse_unsup-1"),
    Step("analysis table --points", "", "baseline"),
    Step("analysis plot", "", "curves.png"),
    Step("analysis report", "", "simcse_unsup-1.html"),
    Step("analysis export", "", "simcse_unsup-1"),
    Step("analysis export --out model/", "", "model"),
    Step("analysis optuna --storage sqlite:///optuna.db", "", "simcse_unsup-1"),
    Step('analysis test --reason "the paper"', "", "builtin"),
    Step('analysis test --reason "the paper\'s table"', "", "opened"),
    Step("search track simcse_unsup-1", "", "study simcse_unsup-1 is in MLflow"),
    Step("search run spaces/simcse_sup.yaml --from simcse_unsup-1", FEW, "is finished"),
    Step(
        "search run spaces/retrieval.yaml --set data.train=my.csv --set 'data.dev=[my_beir]'",
        "--set encoder=my-encoder --set search.trials=2 --set search.repeats=1 --set train.max_examples=64",
        "study retrieval-1 is finished",
    ),
    Step("search run spaces/edacse.yaml --smoke", FEW, "is finished"),
    Step("search run spaces/edacse.yaml", FEW, "is finished"),
    Step("search run papers/edacse_table09_bert --smoke", "--set search.repeats=1", "is finished"),
    Step("search run papers/edacse_table09_bert", "--smoke --set search.repeats=1", "is finished"),
    Step("analysis compare edacse_table09_bert", "", "departs in"),
    Step(
        "search init questions.csv --encoder sentence-transformers/all-MiniLM-L6-v2",
        "--encoder builtin:tiny",
        "wrote questions.yaml",
    ),
    Step("search run questions.yaml", f"{PAIRS} --set search.trials=3", "study questions-1 is finished"),
    Step("search confirm questions-1", "--top 1 --seeds 2", "is finished"),
    Step('analysis test --reason "before the release" --set ./questions_test', "", "questions_ndcg10_test"),
    Step(
        'analysis test --reason "before training" --set ./questions_test --untrained', "", "untrained_questions_ndcg10"
    ),
    Step("search init en_debian_pairs_train.tsv --dev debian_dev", "--encoder builtin:tiny", "--set ./debian_test"),
    Step(DEBIAN, f"{PAIRS} --set search.trials=2", "study en_debian_pairs-1 is finished"),
    Step("search confirm en_debian_pairs-1 --top 1 --seeds 2", "", "is finished"),
    Step('analysis test --reason "before the release" --set ./debian_test', "", "debian_ndcg10_test"),
    Step(
        'analysis test --reason "the untouched encoder" --set ./debian_test --untrained', "", "untrained_debian_ndcg10"
    ),
    Step("search run dcl.yaml --smoke", FEW, "study dcl-1 is finished"),
    Step("search check own.yaml", "", "up to 20 points"),
    Step("search run own.yaml --smoke", FEW, "study own_text-1 is finished"),
    Step(
        "search run spaces/league/league_$method.yaml --name $method --storage league"
        " --set encoder=my-encoder --set data.train=sentences.txt",
        f"{TINY} --set search.trials=2 --set search.budget=2",
        "is finished",
    ),
    Step("search confirm $method --storage league --top 1 --seeds 3", "--seeds 2", "is finished"),
    Step("analysis league --storage league", "", "whitening"),
    Step("search cluster check cluster.yaml", "", "SET-"),
    Step("search delete simcse_unsup-1", "", "is deleted"),
]
FAILS = {"search cluster check cluster.yaml": 2}  # its gaps are the reader's to fill
METHODS = ("simcse", "whitening")  # what stands for $method


def played(text: str) -> str | None:
    """The file whose test plays a command; what it needs where nothing does; None = it is run here or in test_docs."""
    return next((who for pattern, who in {**PLAYED, **PARSED}.items() if re.fullmatch(pattern, text)), None)


def test_every_command_is_run_or_listed() -> None:
    texts = {text for text, _ in COMMANDS}
    here = {EXPORT, *(step.text for step in STORY)} | {text for text, _ in at_hand()}
    assert sorted(text for text in texts - here if not played(text)) == []
    assert sorted(here - texts) == [], "documented no more"
    assert [p for p in {**PLAYED, **PARSED} if not any(re.fullmatch(p, text) for text in texts)] == []
    assert [name for name in PLAYED.values() if not (ROOT / name).exists()] == []
    assert len(STORY) + len(at_hand()) > 2 * len([text for text in texts if played(text)])


def test_every_line_of_another_program_is_listed() -> None:
    text = "\n".join(re.sub(r"\\\n\s*", " ", block.text) for block in SHELL if block.kind == "bash")
    lines = [line.split("&&")[0].split() for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    programs = {words[0].removeprefix(".venv/bin/") for words in lines if not words[0].startswith("#")}
    assignments = {word for word in programs if re.match(r"[A-Z]+=", word)}
    assert programs - assignments - {"search", "analysis", "done"} - set(OTHERS) == set()


@dataclass
class Desk:
    """Where the reader types. running: a search in another terminal."""

    folder: Path
    running: subprocess.Popen[str] | None = None

    def events(self, study: str) -> list[Any]:
        journal = self.folder / "runs" / study / "tracking.jsonl"
        return list(read(journal)) if journal.exists() else []


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The project's folder with what a reader has written beside it, and one Ray for all searches."""
    from search.running.private_ray import LOOPBACK, private_ray
    from search.running.ray_session import ENVIRONMENT
    from trainables.encoders.builtin_encoder import encoder_folder

    folder = tmp_path_factory.mktemp("desk")
    for name in ("spaces", "docs", "cluster.yaml"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("dcl.py", "dcl.yaml"):
        shutil.copy(ROOT / "docs" / "examples" / name, folder)
    shutil.copytree(encoder_folder("en", tmp_path_factory.mktemp("encoder")), folder / "my-encoder")
    (folder / "sentences.txt").write_text("".join(f"a red cat sleeps on mat {k}\n" for k in range(300)))
    rows = [f"what is item {k},item {k} is a red cat on mat {k}" for k in range(300)]
    (folder / "questions.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    (folder / "en_debian_pairs_train.tsv").write_text((folder / "questions.csv").read_text().replace(",", "\t"))
    (folder / "my.csv").write_text(
        "anchor,positive\n" + "".join(f"who sleeps on {k},a cat sleeps on {k}\n" for k in range(99))
    )
    for name in ("my_beir", "debian_dev", "debian_test"):
        shutil.copytree(ROOT / "trainables" / "data" / "builtin" / "en_retrieval", folder / name)
    (folder / "debian_test" / "qrels" / "dev.tsv").rename(folder / "debian_test" / "qrels" / "test.tsv")
    (folder / "own.yaml").write_text(space("own_text").text)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "SEARCH_STORAGE"):
            patch.delenv(name, raising=False)
        for name, value in (ENVIRONMENT | LOOPBACK).items():
            patch.setenv(name, value)
        patch.chdir(folder)
        with private_ray():
            made = Desk(folder)
            yield made
            if made.running is not None and made.running.poll() is None:
                made.running.kill()


def space(name: str) -> Block:
    """The documented space of that name."""
    (found,) = [block for block in SPACES if yaml.safe_load(block.text).get("name") == name]
    return found


def call(text: str) -> Result:
    program, *words = shlex.split(text)
    return CliRunner().invoke(PROGRAMS[program], words, input="y\n")


def outside(text: str) -> subprocess.Popen[str]:
    """The command in a terminal of its own."""
    program, *words = shlex.split(text)
    own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [str(BIN / program), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own
    )


slow = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.mark.parametrize("step", [pytest.param(s, id=s.text, marks=slow) for s in STORY])
def test_it_runs(desk: Desk, step: Step) -> None:
    text = f"{step.text} {step.more}".strip()
    if step.how == "begin":
        desk.running = outside(text)
        until = time.monotonic() + 400
        while not any(e["e"] == "eval" and e["id"] == "t0003" for e in desk.events("simcse_unsup-1")):
            assert desk.running.poll() is None, desk.running.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.2)
        return
    if step.how == "watch":
        process, said = outside(text), ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if line.startswith("Ctrl-C ends"):
                break
        process.send_signal(signal.SIGINT)
        assert (process.wait(timeout=60), step.prints in said) == (0, True), said
        return
    if "--out model/" in text:
        shutil.rmtree("model", ignore_errors=True)
    for method in METHODS if "$method" in text else ("",):
        done = call(text.replace("$method", method))
        assert done.exit_code == FAILS.get(step.text, 0), done.output
        assert step.prints in done.output
    if step.how == "stop":
        assert desk.running is not None
        said = desk.running.communicate(timeout=300)[0]
        assert desk.running.returncode == 130, said
        assert "search resume" in said


OTHERWISE = {  # spaces for an encoder or a script of the reader's: how they are made small
    "decoder": "--set encoder=my-qwen --set data.train=builtin --set search.trials=2 --set resources.gpus=0 " + TINY,
    "partly": "--set encoder=my-encoder --set data.train=builtin --set search.trials=2 --set resources.gpus=0 "
    "--set 'params.freeze={choice: [null, 0, 1]}' " + TINY,
}
WHOLE = [b for b in SPACES if {"method", "data", "params"} <= set(yaml.safe_load(b.text))]
RUN = [b for b in WHOLE if yaml.safe_load(b.text)["name"] not in ("quickstart", "own_text", "st_simcse")]


@pytest.mark.parametrize("block", [pytest.param(b, id=str(b), marks=slow) for b in RUN])
def test_every_space_runs(desk: Desk, block: Block) -> None:
    """quickstart and own_text are in the story; the script of st_simcse is run below."""
    from tiny_families import folder_of

    name = yaml.safe_load(block.text)["name"]
    if name == "decoder":
        shutil.copytree(folder_of("qwen2"), desk.folder / "my-qwen")
    (desk.folder / f"{name}.yaml").write_text(block.text)
    done = call(f"search run {name}.yaml {OTHERWISE.get(name, FEW)}")
    assert (done.exit_code, f"study {name}-1 is finished" in done.output) == (0, True), done.output


EXPORT = "analysis export --study decoder --out model/"


@pytest.mark.slow
@pytest.mark.ray
def test_what_the_decoder_learnt_is_exported_and_loaded(desk: Desk) -> None:
    shutil.rmtree("model", ignore_errors=True)
    assert call(EXPORT).exit_code == 0
    blocks = [b for b in BLOCKS if b.kind == "python" and "SentenceTransformer(" in b.text]
    assert len(blocks) == 2
    for block in blocks:
        (desk.folder / "use.py").write_text(block.text)
        assert len(runpy.run_path(str(desk.folder / "use.py"))["vectors"]) == 2
