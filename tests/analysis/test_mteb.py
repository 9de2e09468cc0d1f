"""`analysis test --mteb`: tasks by name and from a file, MTEB's own values, the record, and every fault in one line."""

from __future__ import annotations

import json
import re
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_store import SmallStore, fill
from trained_trials import TINY_GCLSR, trial_folder

from analysis.checkpoints.testing import score
from analysis.checkpoints.trained import load_trained
from analysis.commands.main import main
from analysis.reading.store import find_study, open_store
from analysis.tables.record import openings, scores_by_configuration
from analysis.tables.study import Study, read_study
from trainables.data.sets import load_corpus, load_pairs

pytestmark = pytest.mark.costly

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "mteb_task.py"
SEARCH = """

from mteb.abstasks.retrieval import AbsTaskRetrieval


class LocalSearch(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="LocalSearch", description="the same pairs searched", type="Retrieval", category="t2t",
        modalities=["text"], dataset={"path": FILE.name, "revision": "1"}, eval_splits=["test"],
        eval_langs=["zho-Hans"], main_score="ndcg_at_10", **ABOUT,
    )

    def load_data(self, **_):
        pairs = load_pairs(str(FILE), "test", "en")
        ids = [str(i) for i in range(len(pairs))]
        self.dataset = {"default": {"test": {
            "corpus": Dataset.from_dict({"id": ids, "title": [""] * len(ids), "text": pairs.second}),
            "queries": Dataset.from_dict({"id": ids, "text": pairs.first}),
            "relevant_docs": {i: {i: 1} for i in ids}, "top_ranked": None,
        }}}
        self.data_loaded = True
"""


def write_pairs(folder: Path, first: list[str], second: list[str], gold: list[float]) -> None:
    rows = ["sentence1\tsentence2\tscore", *map("{}\t{}\t{}".format, first, second, gold)]
    (folder / "pairs.tsv").write_text("\n".join(rows) + "\n")


def make_storage(folder: Path) -> Path:
    """A study whose confirmed best has weights of one seed, and a file of two tasks on the builtin test pairs."""
    made = SmallStore(folder / "runs")
    fill(made)
    trial_folder(made.folder / "small-1" / "trials" / "c0000.0", "edacse", "zh", seed=3)
    pairs = load_pairs("builtin", "test", "zh")
    write_pairs(folder, pairs.first, pairs.second, pairs.gold.tolist())
    (folder / "tasks.py").write_text(EXAMPLE.read_text() + SEARCH)
    return made.folder


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return make_storage(tmp_path)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One storage for the tests that must leave it as it is."""
    return make_storage(tmp_path_factory.mktemp("untouched"))


@pytest.fixture
def with_mteb() -> None:
    pytest.importorskip("mteb", reason="the extra mteb is not installed")


def study(storage: Path) -> Study:
    opened = open_store(f"sqlite:///{storage}/mlflow.db")
    return read_study(opened, find_study(opened, "small-1"))


def run_test(storage: Path, *arguments: str) -> tuple[int, str]:
    command = ["test", "small-1", "--storage", str(storage), "--reason", "the paper", *arguments]
    result = CliRunner().invoke(main, command)
    return result.exit_code, result.output


@pytest.mark.usefixtures("with_mteb")
def test_tasks_of_a_file_by_mteb_s_own_code(storage: Path) -> None:
    code, output = run_test(storage, "--mteb", str(storage.parent / "tasks.py"), "--format", "json")
    assert code == 0, output
    about = json.loads(output)
    values = {row["task"]: row["value"] for row in about["scores"]}
    trained = load_trained(str(storage / "small-1" / "trials" / "c0000.0"))
    ours = score(trained, [load_pairs("builtin", "test", "zh")])[1]["builtin_test"]
    assert values["SupportQuestions"] == pytest.approx(ours, abs=1e-5)  # two programs, one Spearman
    assert 0 < values["LocalSearch"] < 1

    (file,) = (storage / "small-1" / "mteb" / "results").glob("small__small-1-c0000.0/*/SupportQuestions.json")
    written = json.loads(file.read_text())
    assert written["scores"]["test"][0]["main_score"] == pytest.approx(values["SupportQuestions"])
    s = study(storage)
    (run,) = [r for r in s.stored_trials if r.tags["trial_id"] == "c0000.0"]
    assert run.metrics["mteb_SupportQuestions_test"] == pytest.approx(values["SupportQuestions"])
    revision = file.parent.name
    assert s.store.artifact(run, f"mteb/small__small-1-c0000.0/{revision}/LocalSearch.json") is not None
    assert run.tags["test_opening.1"]
    assert openings(s.stored)[0].endswith("c0000.0 on MTEB's SupportQuestions, LocalSearch: the paper")
    names = scores_by_configuration([run])["metric"].tolist()
    assert names == ["mteb_LocalSearch_test", "mteb_SupportQuestions_test"]  # so the card and the report have them

    code, output = run_test(storage, "--mteb", str(storage.parent / "tasks.py"))
    assert code == 0, output
    assert "Not the first opening" in output
    assert re.search(r"SupportQuestions +cosine_spearman +\d\d\.\d\d", output)


@pytest.mark.usefixtures("with_mteb")
def test_tasks_on_data_of_the_study_are_named_and_counted(storage: Path) -> None:
    from analysis.checkpoints.mteb import find_tasks, known_data

    (task,) = find_tasks(["STSBenchmark"])
    assert len(find_tasks(["STSBenchmark", "MTEB(eng, v2)"])) == 41  # each task once
    data = {"train": "stsb", "dev": ["sickr"], "language": "en"}
    assert known_data(task, data)[0] == "STSBenchmark: its data set mteb/stsbenchmark-sts is stsb of data.train"
    (sick,) = find_tasks(["SICK-R"])
    assert known_data(sick, data)[0].endswith("mteb/sickr-sts is sickr of data.dev")
    (quora,) = find_tasks(["NanoQuoraRetrieval"])
    nano = {"train": "builtin", "dev": ["NanoQuoraRetrieval"], "language": "en"}
    assert known_data(quora, nano)[0].endswith("NanoQuoraRetrieval is NanoQuoraRetrieval of data.dev")
    assert known_data(quora, {"train": "builtin", "dev": ["builtin"], "language": "en"}) == []

    dev, train = load_pairs("builtin", "dev", "zh"), load_corpus("builtin", "zh").columns["sentence"]
    first = [*dev.first[:7], *train[:3], "无人知晓的句子"]
    write_pairs(storage.parent, first, [f"{text}？" for text in first], list(range(len(first))))
    for task in find_tasks([str(storage.parent / "tasks.py")]):
        task.load_data()
        selected, *more = reversed(known_data(task, {"train": "builtin", "dev": ["builtin"], "language": "zh"}))
        total = len({*first, *(f"{text}？" for text in first)})
        assert f": 7 of its {total} texts ({700 / total:.1f} %) also stand in builtin of data.dev" in selected
        assert [f"3 of its {total} texts" in line and "data.train" in line for line in more] == [True]


@pytest.mark.usefixtures("with_mteb")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--mteb", "STSBenchmrk"], 2, "unknown MTEB task 'STSBenchmrk'; did you mean 'STSBenchmark'?"),
        (["--mteb", "nosuch.py"], 2, "--mteb: nosuch.py: no such file"),
        (["--mteb", "EMPTY"], 2, "expected classes of MTEB's tasks"),
        (["--mteb", "BROKEN"], 2, "broken.py: NameError: name 'nosuch' is not defined"),
        (
            ["--mteb", "STSBenchmark", "--set", "stsb"],
            2,
            "expected no --set, --transfer, --precision or --untrained beside it",
        ),
        (["--mteb", "STSBenchmark", "--trial", "t0001"], 1, "no weights stored of t0001"),
        (["--mteb", "CIFAR10"], 2, "CIFAR10: expected a task on text"),
    ],
)
def test_mistakes_open_nothing(untouched: Path, tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    (tmp_path / "empty.py").write_text("import json\n")
    (tmp_path / "broken.py").write_text("nosuch\n")
    named = {"EMPTY": str(tmp_path / "empty.py"), "BROKEN": str(tmp_path / "broken.py")}
    got, output = run_test(untouched, *(named.get(a, a) for a in arguments))
    assert (got, message in output, output.count("\n")) == (code, True, 1), output
    assert openings(study(untouched).stored) == []


@pytest.mark.usefixtures("with_mteb")
def test_unreachable_hub_is_one_line(untouched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as constants

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_HOME", str(untouched.parent / "empty"))
        code, output = run_test(untouched, "--mteb", "STSBenchmark")
    assert (code, output.count("\n")) == (1, 1), output
    assert output.startswith("analysis: STSBenchmark: its data, mteb/stsbenchmark-sts of the hub: ")
    assert output.endswith("check the network\n")
    assert openings(study(untouched).stored) == []


@pytest.mark.usefixtures("with_mteb")
def test_own_network_is_evaluated_by_its_vectors(storage: Path) -> None:
    trial_folder(storage / "small-1" / "trials" / "c0000.2", "gclsr", "zh", params=TINY_GCLSR)
    code, output = run_test(
        storage, "--mteb", str(storage.parent / "tasks.py"), "--trial", "c0000.2", "--format", "json"
    )
    assert code == 0, output
    trained = load_trained(str(storage / "small-1" / "trials" / "c0000.2"))
    ours = score(trained, [load_pairs("builtin", "test", "zh")])[1]["builtin_test"]
    assert json.loads(output)["scores"][0]["value"] == pytest.approx(ours, abs=1e-4)


def test_missing_extra_names_what_to_install(untouched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    code, output = run_test(untouched, "--mteb", "STSBenchmark")
    assert (code, output.count("\n")) == (2, 1)
    assert output.endswith("install it: pip install 'contrastive-search[mteb]'\n")
    assert openings(study(untouched).stored) == []
