"""`analysis export --push-to-hub` against a hub on this machine, and the card that it uploads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hub_server import TOKEN, HubServer, hub_server
from huggingface_hub import ModelCard, constants
from memory_study import memory_study
from small_store import SmallStore, fill
from trained_trials import trial_folder

from analysis.checkpoints.export import base_licence
from analysis.commands.main import main
from analysis.tables.metric import Metric
from analysis.writing.card import About, Result, citation, front_matter, hub_encoder, model_card, repositories
from trainables.contract.registry import SHIPPED, declared

pytestmark = pytest.mark.costly
ROOT = Path(__file__).parents[2]
COMMIT = "0123456789" * 4


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = SmallStore(tmp_path_factory.mktemp("store"))
    fill(made)
    trial_folder(made.folder / "small-1" / "trials" / "c0000.0", "edacse", "zh", seed=3)
    return made.folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def export(storage: Path, out: Path, *arguments: str) -> tuple[int, str]:
    command = ["export", "small-1", "--storage", str(storage), "--out", str(out), *arguments]
    result = CliRunner().invoke(main, command)
    return result.exit_code, result.output


def test_the_hub_has_the_folder_byte_for_byte(storage: Path, tmp_path: Path) -> None:
    with hub_server() as hub:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "http", "HTTP"))}
        where = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
        command = [sys.executable, "-m", "analysis", "export", "small-1", "--storage", str(storage)]
        command += ["--out", str(tmp_path / "model"), "--push-to-hub", "me/small", "--licence", "apache-2.0"]
        done = subprocess.run(command, env=kept | where, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [str(tmp_path / "model"), f"{hub.url}/me/small"]
        there = hub.repositories["me/small"]
    local = {
        p.relative_to(tmp_path / "model").as_posix(): p.read_bytes()
        for p in (tmp_path / "model").rglob("*")
        if p.is_file()
    }
    assert there == {"private": True, "files": local}
    large = {name for name, content in local.items() if content in hub.large.values()}
    assert large == {name for name in local if name.endswith(".safetensors")} != set()
    assert b"license: apache-2.0" in local["README.md"]


def test_visibility_is_as_requested(storage: Path, tmp_path: Path, hub: HubServer) -> None:
    code, output = export(storage, tmp_path / "a", "--push-to-hub", "me/open", "--public")
    assert (code, hub.repositories["me/open"]["private"]) == (0, False), output
    before = dict(hub.repositories["me/open"]["files"])
    code, output = export(storage, tmp_path / "b", "--push-to-hub", "me/open")
    assert (code, output.splitlines()[-1]) == (
        2, "analysis: --push-to-hub: me/open is there already and public; give --public, or name another",
    )  # fmt: skip
    assert hub.repositories["me/open"]["files"] == before
    code, output = export(storage, tmp_path / "c", "--push-to-hub", "small")  # the user's own
    assert (code, hub.repositories["me/small"]["private"]) == (0, True), output


@pytest.mark.parametrize(
    ("repository", "token", "code", "message"),
    [
        ("me/x", "hf_wrong", 2, "the hub does not take the token (Invalid user token."),
        ("me/x", "", 2, "no token of the hub on this machine; log in with `hf auth login`, or set HF_TOKEN"),
        ("me/x y", TOKEN, 2, "Repo id must"),
        ("a/b/c", TOKEN, 2, "Repo id must"),
    ],
)
def test_faults_are_one_line_before_anything_is_written(
    storage: Path, tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch,
    repository: str, token: str, code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    got, output = export(storage, tmp_path / "model", "--push-to-hub", repository)
    assert (got, message in output, output.count("\n")) == (code, True, 1), output
    assert output.startswith("analysis: --push-to-hub: ")
    assert not (tmp_path / "model").exists()
    assert hub.repositories == {}


def test_a_namespace_of_others_and_a_hub_that_is_away(
    storage: Path, tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output = export(storage, tmp_path / "model", "--push-to-hub", "them/x")
    assert code == 2
    assert "them/x: not allowed to this token (You don't have the rights" in output.splitlines()[-1]
    assert hub.repositories == {}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        code, output = export(storage, tmp_path / "other", "--push-to-hub", "me/x")
    assert (code, output.count("\n")) == (1, 1), output
    assert output.endswith("check the network\n")
    assert not (tmp_path / "other").exists()
    assert export(storage, tmp_path / "other", "--public")[0] == 2


def test_card_answers_the_questions_of_a_stranger(storage: Path, tmp_path: Path) -> None:
    code, output = export(storage, tmp_path / "model", "--licence", "mit")
    assert code == 0, output
    card = ModelCard.load(tmp_path / "model" / "README.md")  # as the hub's own library reads it
    assert (card.data.license, card.data.language) == ("mit", "zh")
    dev, mean, expected = [r for r in card.data.eval_results if r.dataset_name == "builtin dev"]
    assert mean.metric_name == "Spearman x 100, mean of the configuration over 3 fresh seeds"
    assert expected.metric_name == (
        "Spearman x 100, expected of the configuration on other seeds, corrected for selection"
    )
    assert expected.metric_value <= mean.metric_value
    assert (dev.task_type, dev.metric_type, dev.dataset_split) == ("sentence-similarity", "cosine_spearman", "dev")
    low, high = (float(x) for x in dev.metric_name.split("95 %: ")[1].rstrip(")").split(" to "))
    assert low < dev.metric_value < high
    for part in (f"of this checkpoint: {dev.metric_value:.2f} ({low:.2f} to {high:.2f})", "vectors of 64 dimensions",
                 "read up to 128 tokens", "doi = {10.3390/app131810120}", "3 seeds (100, 101, 102)", "| lambda | 0.6 |",
                 f"Expected on other seeds, corrected for selection: {expected.metric_value:.2f}.",
                 "| builtin | builtin |"):  # fmt: skip
        assert part in card.text


@pytest.mark.parametrize(
    ("encoder", "recorded", "base"),
    [
        ("bert-base-uncased", {"commit": COMMIT}, ("bert-base-uncased", COMMIT)),
        ("owner/name@main", {"commit": COMMIT}, ("owner/name", COMMIT)),
        (f"owner/name@{COMMIT}", {"files": "a"}, ("owner/name", COMMIT)),
        ("enc", {"files": "a", "weights": "b"}, None),
        ("owner/name", {"files": "a"}, None),  # a folder, or of a version that did not record it
        ("./enc", {"commit": COMMIT}, None),
        (f"/cache/models--a--b/snapshots/{COMMIT}", {"commit": COMMIT}, None),
        (f"snapshots/{COMMIT}", {"commit": COMMIT}, None),
        ("builtin:tiny", None, None),
        ("", None, None),
    ],
)
def test_base_model_is_a_hub_id_with_its_commit(
    encoder: str, recorded: dict[str, str] | None, base: tuple[str, str] | None
) -> None:
    assert hub_encoder({"spec": {"encoder": encoder}, "encoder": recorded}) == base


def test_index_of_each_kind_of_value() -> None:
    commit = "0" * 40
    data = {"train": f"nli+hub:org/train@{commit}:train", "dev": ["stsb", "NanoNFCorpus", "my/q"], "language": "en"}
    spec = {"data": data, "method": "simcse_sup", "encoder": "bert-base-uncased@abc"}
    given = [
        Result("mean(stsb_dev,q_ndcg10_dev)", 0.5), Result("stsb_dev", 0.8123456, 0.8, 0.82),
        Result("NanoNFCorpus_mrr10_dev", 0.3), Result("q_ndcg10_dev", 0.4), Result("sts12_test", 0.7, 0.6, 0.8),
        Result("mteb_Banking77_test", 0.6), Result("transfer_mr_test", 0.9), Result("avg_test", 0.75),
        Result("x_dev", float("nan")), Result("topics_dev", 2.5), Result("mean(stsb_dev,topics_dev)", 1.5),
        Result("stsb_held_dev", 0.8),
    ]  # fmt: skip
    front = front_matter(spec, "m", "mit", given, own_loader=False, base="bert-base-uncased")
    assert front["datasets"] == [
        "princeton-nlp/datasets-for-simcse", "org/train", "mteb/stsbenchmark-sts", "mteb/NanoNFCorpusRetrieval",
    ]  # fmt: skip
    assert (front["license"], front["base_model"]) == ("mit", "bert-base-uncased")
    index = front["model-index"][0]["results"]
    rows = [
        (task["type"], data["type"], data["split"], metric["type"], metric["name"])
        for task, data, (metric,) in ((row["task"], row["dataset"], row["metrics"]) for row in index)
    ]
    similar, search = "sentence-similarity", "information-retrieval"
    assert rows == [
        (similar, "mean(stsb_dev,q_ndcg10_dev)", "dev", "mean", "mean x 100"),
        (similar, "mteb/stsbenchmark-sts", "dev", "cosine_spearman", "Spearman x 100 (95 %: 80.00 to 82.00)"),
        (search, "mteb/NanoNFCorpusRetrieval", "dev", "mrr_at_10", "MRR@10 x 100"),
        (search, "q", "dev", "ndcg_at_10", "nDCG@10 x 100"),
        (similar, "mteb/sts12-sts", "test", "cosine_spearman", "Spearman x 100 (95 %: 60.00 to 80.00)"),
        ("mteb", "Banking77", "test", "main_score", "MTEB's main score x 100"),
        ("text-classification", "transfer_mr", "test", "accuracy", "accuracy x 100"),
        (similar, "avg", "test", "cosine_spearman", "mean of Spearman x 100"),
        (similar, "topics", "dev", "topics_dev", "topics_dev"),
        (similar, "mean(stsb_dev,topics_dev)", "dev", "mean", "mean"),
        (similar, "stsb_held", "dev", "cosine_spearman", "Spearman x 100"),
    ]
    assert [row["metrics"][0]["value"] for row in index[-3:]] == [2.5, 1.5, 80.0]
    assert index[1]["metrics"][0]["value"] == 81.2346
    spec["script"] = {"file": "t.py"}
    script = front_matter(spec, "m", None, [Result("x_dev", 0.5, 0.4, 0.6)], own_loader=True)
    (row,) = script["model-index"][0]["results"]
    assert row["metrics"] == [{"type": "x_dev", "value": 0.5, "name": "x_dev"}]
    assert repositories({"train": "edacse-zh", "dev": ["stsb"], "language": "zh"})["atec"][0] == "C-MTEB/ATEC"


@pytest.mark.parametrize("script", [{"file": "t.py"}, None])
def test_values_of_unknown_range_are_given_as_reported(script: dict[str, str] | None) -> None:
    study = memory_study([{"a": 0.1}, {"a": 0.2}], [2.5, 2.25], {"a": {"float": [0, 1]}},
                         space={"method": "script" if script else "simcse", "data": {"dev": ["stsb"]}})  # fmt: skip
    study = replace(study, metric=Metric("loss_dev", ("loss_dev",), "min"))
    data = {"train": "mine.txt", "dev": ["stsb"], "language": "en"}
    spec = {"data": data, "method": "simcse", "metric": "loss_dev", "encoder": None, "script": script}
    card = model_card(study, study.trials.iloc[1], {}, {"spec": spec}, About())
    assert "`loss_dev` of this checkpoint: 2.25, seed" in card
    assert "mean: 2.25," in card
    assert "loss_dev is given as it was reported." in card
    assert "x 100" not in card
    assert "None" not in card


def test_every_method_has_a_paper_to_cite() -> None:
    for name in SHIPPED:
        assert citation(name, declared(name).paper).startswith(f"@misc{{{name},\n  title = {{"), name
    assert citation("mine", "") == citation("mine", "a title alone") == ""


def test_licence_is_read_from_the_encoder_card(tmp_path: Path, hub: HubServer) -> None:
    assert base_licence("builtin:tiny", ask=True) is None
    assert base_licence(str(tmp_path), ask=False) is None
    for name in ("config.json", "x.safetensors"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# An encoder\n")
    assert base_licence(str(tmp_path), ask=False) == "cc-by-4.0"
    assert base_licence("me/nosuch", ask=True) is None
    assert [line for line in hub.requests if "/api/models/me/nosuch" in line]
