"""`--metric` names another metric than the one that selected: what is ranked, and what the named commands do."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner, Result
from mlflow.entities import Metric
from small_store import SPACE, SmallStore

from analysis.commands.main import main
from analysis.tables.metric import parse_metric
from analysis.tables.study import Study
from analysis.writing.answer import value_unit
from search import schema

pytestmark = pytest.mark.costly
MEAN = "mean(a_mse_dev,b_mse_dev)"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    """new-1, which also measured x_dev, best at t0001; old-1, confirmed, which did not; mse-1, whose least is best."""
    made = SmallStore(tmp_path_factory.mktemp("store"))
    for study in ("old-1", "new-1"):
        run = made.study(study)
        if study == "old-1":
            made.client.set_tag(run, f"{schema.CONFIRMATION}1", "")
        for i in range(4):
            point = {"learning_rate": 10.0 ** -(i + 2), "batch_size": 8}
            trial = made.trial(run, study, f"t{i:04}", point, [0.4, 0.5 + 0.01 * i], baseline=i == 0)
            if study == "new-1":
                value = 0.9 - 0.02 * (i - 1) ** 2
                made.client.log_batch(trial, metrics=[Metric(k, value, 0, 1000) for k in ("x_dev", "best_x_dev")])
                widths = {"builtin_dev@16": value / 2, "builtin_dev@8": value / 4}  # as the tracker logs them
                logged = {schema.stored(name): v for name, v in widths.items()} | {
                    schema.best_key(n): v for n, v in widths.items()
                }
                made.client.log_batch(trial, metrics=[Metric(k, v, 0, 1000) for k, v in logged.items()])
                (made.folder / study / "trials" / f"t{i:04}" / "best").mkdir(parents=True)
                (made.folder / study / "trials" / f"t{i:04}" / "best" / "weights.safetensors").write_bytes(b"")
    space = copy.deepcopy(SPACE)
    space |= {"name": "mse", "metric": {"name": MEAN, "mode": "min"}, "params": {"rank": {"choice": [4, 8, 16, 32]}}}
    run = made.study("mse-1", space)
    for i in range(4):
        value = 0.5 + 0.02 * i
        trial = made.trial(run, "mse-1", f"t{i:04}", {"rank": 4 * 2**i}, [value], metric=MEAN[5:-1].replace(",", "_"))
        names = [schema.best_key(MEAN), *(f"{best}{x}_mse_dev" for x in "ab" for best in ("", "best_"))]
        made.client.log_batch(trial, metrics=[Metric(name, value, 0, 500) for name in names])
    return made


def call(store: SmallStore, *arguments: str) -> Result:
    environment = {"MLFLOW_TRACKING_URI": "", "COLUMNS": "200"}
    return CliRunner(env=environment).invoke(main, [*arguments, "--storage", str(store.folder)])


def answered(output: str) -> dict[str, str]:
    """The lines of the answer: label -> text."""
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in output.split("\n\n")[-1].splitlines())


def test_study_without_the_metric_spoils_no_verdict(store: SmallStore, tmp_path: Path) -> None:
    found = call(store, "best", "new-1", "--metric", "max(x_dev)")
    assert found.exit_code == 0, found.output
    assert answered(found.output)["Best"].startswith("t0001: ")
    assert answered(found.output)["Dev"].startswith("x_dev 90.0 (one seed; builtin_dev selected)")
    assert call(store, "report", "new-1", "--metric", "max(x_dev)", "--out", str(tmp_path / "r.html")).exit_code == 0
    assert "<dd>x_dev 90.0 " in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_named_commands_follow_the_metric_that_selected(store: SmallStore) -> None:
    export = f"analysis export new-1 --storage {store.folder}"
    found = call(store, "best", "new-1", "--metric", "max(x_dev)").output
    assert "Ranked by x_dev; builtin_dev selected, and by that `search confirm`" in found
    confirm = f"not tested; search confirm new-1 --storage {store.folder}"
    assert answered(found)["Gain"].endswith(f"{confirm} confirms what builtin_dev selected")
    assert answered(found)["Next"] == f"{export} --trial t0001"
    document = json.loads(call(store, "best", "new-1", "--metric", "max(x_dev)", "--format", "json").output)
    assert document["export"] == f"{export} --trial t0001"
    assert answered(call(store, "best", "new-1").output)["Next"] == f"search confirm new-1 --storage {store.folder}"


@pytest.mark.parametrize("metric", [MEAN, MEAN.replace(",", ", "), "a_mse_dev", "mean(b_mse_dev,a_mse_dev)"])
def test_least_is_best_of_a_loss_and_its_parts(store: SmallStore, metric: str) -> None:
    assert answered(call(store, "best", "mse-1", "--metric", metric).output)["Best"].startswith("t0000: ")


def test_parameter_named_like_a_column_gets_its_own(store: SmallStore) -> None:
    header, first = next(
        pair for pair in zip(*(call(store, "best", "mse-1").output.splitlines()[i:] for i in (0, 1)), strict=False)
        if pair[0].startswith("rank")
    )  # fmt: skip
    assert "params.rank" in header.split()
    assert first.split()[0] == "1"


def test_direction_of_an_unknown_metric_must_be_named(store: SmallStore) -> None:
    found = call(store, "best", "new-1", "--metric", "x_dev")
    assert found.exit_code == 2
    assert found.output.endswith("its direction is not known: write max(x_dev) or min(x_dev)\n")
    found = call(store, "best", "new-1", "--metric", " min( x_dev )")
    assert answered(found.output)["Best"].startswith("t0003: ")
    assert answered(found.output)["Dev"].startswith("x_dev 82.0 ")
    of_a_dev_set = call(store, "best", "new-1", "--metric", "builtin_dev").output
    assert answered(of_a_dev_set)["Best"].startswith("t0003: ")


def test_a_width_ranks_as_the_set_that_it_is_of(store: SmallStore) -> None:
    found = call(store, "best", "new-1", "--metric", "builtin_dev@16")
    assert found.exit_code == 0, found.output
    assert answered(found.output)["Best"].startswith("t0001: ")
    assert answered(found.output)["Dev"].startswith("builtin_dev@16 45.0 (one seed; builtin_dev selected)")
    mean = call(store, "best", "new-1", "--metric", "mean(builtin_dev@16,builtin_dev@8)")
    assert answered(mean.output)["Dev"].startswith("mean(builtin_dev@16,builtin_dev@8) 33.8 (one seed")
    assert "builtin_dev@16, builtin_dev@8" in call(store, "best", "new-1", "--metric", "builtin_dev@32").output


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("nfcorpus_ndcg10_dev", "Values are nDCG@10 x 100."),
        ("mean(stsb_dev,nfcorpus_ndcg10_dev)", "Values are means of Spearman correlations and nDCG@10 x 100."),
        ("topics_dev", "Values are topics_dev x 100."),
        ("stsb_dev", "Values are Spearman correlations x 100."),
        ("mean(stsb_dev@128,nfcorpus_ndcg10_dev@64)", "Values are means of Spearman correlations and nDCG@10 x 100."),
    ],
)
def test_values_are_named(metric: str, unit: str) -> None:
    study = SimpleNamespace(metric=parse_metric(metric), space={"data": {"dev": ["stsb", "data/nfcorpus"]}})
    assert value_unit(cast(Study, study)) == unit
