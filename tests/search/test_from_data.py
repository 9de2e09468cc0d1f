"""`search init`: from a file of texts to a space that `search check` accepts."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis.strategies import booleans, integers, sampled_from
from toy_encoders import save

from search.cli.main import main
from search.space import check_spaces, load_space
from search.space.from_data import space_from_data, with_values
from trainables.contract.errors import DataError
from trainables.training import pace

ENCODER = ["--encoder", "builtin:tiny"]


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def rows(header: str, row: str, count: int = 400) -> str:
    return "\n".join([header, *(row.replace("#", str(i)) for i in range(count))]) + "\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def beir(folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    for part in ("corpus", "queries"):
        lines = [json.dumps({"_id": str(i), "text": f"{part} {i}"}) for i in range(3)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n0\t0\t1\n1\t2\t1\n")


@pytest.mark.parametrize(
    ("header", "row", "method", "metric", "kind"),
    [
        ("query\tanswer", "what is #\tit is #", "pairs", "questions_ndcg10_dev", "400 pairs (anchor: query, positive:"),
        (
            "query\tpos\tneg",
            "what is #\tit is #\tno #",
            "pairs",
            "questions_ndcg10_dev",
            "400 triplets (anchor: query,",
        ),
        ("sentence1\tsentence2\tscore", "one #\ttwo #\t#", "scored_pairs", "questions_dev", "400 scored pairs (first:"),
    ],
)
def test_a_file_becomes_a_checked_space_with_held_out_parts(
    header: str, row: str, method: str, metric: str, kind: str
) -> None:
    Path("questions.tsv").write_text(rows(header, row))
    done = run("init", "questions.tsv", *ENCODER)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"questions.tsv: {kind}")
    space = load_space("questions.yaml", find_data=True)
    assert (space.name, space.method, space.encoder, space.metric.name) == (
        "questions", method, "builtin:tiny", metric,
    )  # fmt: skip
    assert space.data.train == "questions_train.jsonl"
    assert "questions_train.jsonl: 320 rows" in done.output
    passages = {"query": 400, "query\tpos\tneg": 800}
    if count := passages.get("query\tpos\tneg" if "neg" in header else header.partition("\t")[0]):
        assert f"  questions_dev: 40 queries, which select, among {count} passages\n" in done.output
        assert f"  questions_test: 40 queries, sealed, among {count} passages\n" in done.output
    unit = "queries" if method == "pairs" else "pairs"
    assert f"  40 {unit} give wide confidence intervals; --dev takes a larger dev set\n" in done.output
    commands = [line.split("  ")[1] for line in done.output.split("Next\n")[1].splitlines()]
    assert commands[:3] == ["search check questions.yaml --forecast", "search run questions.yaml",
                            "search confirm questions-1"]  # fmt: skip
    test = "./questions_test" if method == "pairs" else "questions_test.jsonl"
    assert any(c.startswith(f'analysis test --reason "final result" --set {test}') for c in commands)
    assert run("check", "questions.yaml").exit_code == 0

    before = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    again = run("init", "questions.tsv", *ENCODER)
    assert (again.exit_code, again.output) == (
        2, "questions.yaml: exists, and nothing is overwritten; choose another --out\n",
    )  # fmt: skip
    Path("questions.yaml").unlink()
    again = run("init", "questions.tsv", *ENCODER)
    assert again.output.startswith("questions_train.jsonl: exists, and nothing is overwritten")
    assert {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}.items() <= before.items()


def test_a_dev_set_of_ones_own_selects() -> None:
    beir(Path("docs_dev"))
    Path("my").mkdir()
    for part in "ab":
        Path(f"my/{part}.csv").write_text(rows("frage,antwort", f"was ist # {part},das ist # {part}", 100))
    Path("scored.csv").write_text(rows("sentence1,sentence2,score", "one #,two #,#", 5))
    done = run("init", "my", "--dev", "docs_dev", "--dev", "scored.csv", *ENCODER, "--out", "mine.yaml",
               "--column", "anchor=frage", "--column", "positive=antwort")  # fmt: skip
    assert done.exit_code == 0, done.output
    written = yaml.safe_load(Path("mine.yaml").read_text())
    assert written["data"] == {
        "train": "./my", "columns": {"anchor": "frage", "positive": "antwort"},
        "dev": ["./docs_dev", "scored.csv"], "language": "en",
    }  # fmt: skip
    assert written["metric"] == {"name": "mean(docs_ndcg10_dev,scored_dev)"}
    assert "analysis test" not in done.output
    assert not Path("mine_train.jsonl").exists()


def test_names_that_yaml_would_read_otherwise_are_quoted() -> None:
    beir(Path("my docs: #1"))
    Path("a #1.csv").write_text(rows("anchor,positive", "what is #,it is #"))
    assert (
        run("init", "a #1.csv", "--dev", "my docs: #1", "--encoder", "builtin:tiny", "--out", "b.yaml").exit_code == 0
    )
    data = load_space("b.yaml").data
    assert (data.train, data.dev) == ("a #1.csv", ("./my docs: #1",))


def test_sentences_need_a_dev_set() -> None:
    Path("lines.txt").write_text(rows("one sentence", "sentence #"))
    done = run("init", "lines.txt", *ENCODER)
    assert done.exit_code == 2
    assert done.output.startswith(
        "lines.txt: read as sentences (sentence), which have no scores to select by; name a dev"
    )
    assert not Path("lines.yaml").exists()
    beir(Path("docs_dev"))
    assert run("init", "lines.txt", *ENCODER, "--dev", "docs_dev").exit_code == 0
    assert load_space("lines.yaml", find_data=True).method == "simcse"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch.csv"], "data file 'nosuch.csv': does not exist"),
        (["odd.csv"], "odd.csv: cannot recognise the columns a, b, c; name them with --column anchor=NAME"),
        (["odd.csv", "--column", "anchor"], "--column: expected ROLE=COLUMN, such as anchor=question, got 'anchor'"),
        (
            ["odd.csv", "--column", "anchor=x"],
            "--column: expected the roles sentence; anchor and positive,",
        ),
        (["odd.csv", "--column", "sentence=x"], "odd.csv: expected a column x (sentence), got a, b, c"),
        (["good.csv", "--dev", "nosuch_dev"], "nosuch_dev"),
        (["few.csv", "--dev", "builtin"], "few.csv: expected at least 64 rows to train on, 4 batches, got 63"),
    ],
)
def test_what_cannot_be_used_is_one_line(words: list[str], said: str) -> None:
    Path("odd.csv").write_text(rows("a,b,c", "1,2,3", 9))
    Path("good.csv").write_text(rows("anchor,positive", "what is #,it is #", 99))
    Path("few.csv").write_text(rows("anchor,positive", "what is #,it is #", 63))
    done = run("init", *words, *ENCODER)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert len([line for line in done.output.splitlines() if not line.startswith("hint: ")]) == 1


def test_values_are_put_in_place_of_a_ready_spaces_own() -> None:
    text = "# about\n# more\n\nname: old\ndata:\n  train: wiki\n  dev: [stsb]\n# why\nparams:\n  a: 1  # kept\n"
    changed = with_values(text, {"name": "new", "data": "{train: x}"})
    assert changed == "name: new\ndata: {train: x}\n# why\nparams:\n  a: 1  # kept\n"
    more = with_values(text, {"metric": "{name: a_dev}"})
    assert more == text.partition("\n\n")[2].replace("# why", "metric: {name: a_dev}\n# why")


KINDS = (("query\tanswer", "what is #\tit is #"), ("query\tpos\tneg", "what is #\tit is #\tno #"),
         ("sentence1\tsentence2\tscore", "one #\ttwo #\t#"), ("sentence", "a sentence #"))  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=sampled_from(KINDS), count=integers(5, 2000) | integers(5, 300), own_dev=booleans())
@example(KINDS[0], 64, True)
@example(KINDS[3], 127, True)
@example(KINDS[3], 2000, True)
def test_what_init_writes_passes_the_check(kind: tuple[str, str], count: int, own_dev: bool) -> None:
    with TemporaryDirectory() as folder:
        data, out = Path(folder) / "some.tsv", Path(folder) / "some.yaml"
        data.write_text(rows(*kind, count))
        with contextlib.suppress(DataError):
            space_from_data(str(data), ["builtin"] if own_dev else [], "builtin:tiny", out=out)
        refused = not out.exists()
        if not refused:
            space = load_space(out)
            seen = min(space.base["max_examples"] or math.inf, space.base["epochs"] * max(4, count * 8 // 10))
            assert seen / space.base["eval_examples"] >= 2, "too few evaluations for the pruner"
        assert not refused or count < 200 or (kind == KINDS[3] and not own_dev)
        assert refused or check_spaces([str(out)])[0].problems == ()


def test_the_cost_is_printed_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SECONDS", 0.2)
    Path("questions.tsv").write_text(rows("query\tanswer", "what is #\tit is #"))
    done = run("init", "questions.tsv", *ENCODER)
    (cost,) = [line for line in done.output.splitlines() if line.startswith("cost: ")]
    assert re.fullmatch(
        r"cost: (about )?\S+( to \S+)? for the search under the present load \(20 full-length trials of "
        r"320 examples, \d+ at once\), measured on a few steps with batches of 16 and 64\. A confirmation .*", cost
    )  # fmt: skip
    assert f"\n# {cost}.\n" in Path("questions.yaml").read_text()
    assert load_space("questions.yaml").name == "questions"


@pytest.mark.parametrize(
    ("encoder", "said"),
    [("some/encoder-not-here", "since the encoder is not on this machine yet"), ("builtin:tiny", "no memory left")],
)
def test_a_cost_that_cannot_be_measured_is_no_failure(encoder: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(pace, "load_inputs", full)
    Path("questions.tsv").write_text(rows("query\tanswer", "what is #\tit is #"))
    done = run("init", "questions.tsv", "--encoder", encoder)
    assert (done.exit_code, "cost: not measured" in done.output, said in done.output) == (0, True, True), done.output


def test_evaluations_cost_no_more_than_training() -> None:
    beir(Path("docs_dev"))
    Path("questions.tsv").write_text(rows("query\tanswer", "what is #\tit is #"))
    few, many = Path("few.yaml"), Path("many.yaml")
    assert run("init", "questions.tsv", "--dev", "docs_dev", *ENCODER, "--out", str(few)).exit_code == 0
    lines = [json.dumps({"_id": str(i), "text": f"corpus {i} " * 9}) for i in range(300)]
    (Path("docs_dev") / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    assert run("init", "questions.tsv", "--dev", "docs_dev", *ENCODER, "--out", str(many)).exit_code == 0
    assert (load_space(few).base["eval_examples"], load_space(many).base["eval_examples"]) == (100, 400)


def test_the_pooling_of_the_encoders_own_is_written() -> None:
    encoder = save("bert", Path("cls_encoder"))
    modules = [{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"}]
    (encoder / "modules.json").write_text(json.dumps(modules))
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    Path("questions.tsv").write_text(rows("query\tanswer", "what is #\tit is #"))
    done = run("init", "questions.tsv", "--encoder", "./cls_encoder")
    assert "max_length is 128 by default: expected at most 40" in done.output  # the toy's; nothing else is wrong
    assert yaml.safe_load(Path("questions.yaml").read_text())["params"]["pooling"] == "cls"


def test_a_failed_start_names_what_it_wrote() -> None:
    Path("größe.tsv").write_text(rows("query\tanswer", "what is #\tit is #"))
    wrong = run("init", "größe.tsv", "--encoder", "./nothing")
    assert wrong.exit_code == 2
    hint = "hint: gr_e.yaml was written: correct it, then run search check gr_e.yaml; or delete it, gr_e_train.jsonl, "
    assert hint in wrong.output


@pytest.mark.parametrize(
    ("dev", "test", "offered"),
    [
        ("docs_dev", "docs_test", True),
        ("docs_dev/", "docs_test", True),
        ("my_devdocs_dev", "my_devdocs_test", True),
        ("docs_dev", "other_test", False),
        ("./my_beir", "other_test", False),
    ],
)
def test_a_test_set_beside_the_dev_set_is_offered(dev: str, test: str, offered: bool) -> None:
    beir(Path(dev))
    beir(Path(test))
    Path("questions.tsv").write_text(rows("query\tanswer", "what is #\tit is #"))
    done = run("init", "questions.tsv", "--dev", dev, *ENCODER)
    assert (f'analysis test --reason "final result" --set ./{test}' in done.output) is offered
    assert ("analysis test" in done.output) is offered
