"""Points that failed for a cause outside them come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_sessions import Study
from harness import World, make_space
from orders import orders

from search.running.runner import _to_retry
from search.store.ledger import Trial


def test_baseline_that_failed_for_an_external_cause_is_retried(tmp_path: Path) -> None:
    def fault(trial: Trial, k: int) -> str | None:
        return ("disk" if trial.number < 2 else "nan") if trial.number < 3 and k == 2 else None

    space = make_space({"trials": 6, "baseline": "paper", "max_failed_share": 1.0}, encoder="bert-base-uncased")
    ledger = World(space, tmp_path, fault=fault).session().ledger
    assert ledger.trials["t0000"].trial.baseline == "paper"
    assert ledger.stops == {"failed:disk": 2, "failed:nan": 1, "completed": 3}
    assert _to_retry(ledger, None) == ["t0000"]
    assert _to_retry(ledger, "outside") == ["t0000", "t0001"]
    assert _to_retry(ledger, "nan") == ["t0000", "t0002"]


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_failed_trials_run_again_on_request(tmp_path: Path) -> None:
    columns = orders(fault="kill_while", marker=str(tmp_path / "broken"), above=0)
    data = {"train": "builtin", "dev": ["builtin"], "language": "en", "columns": columns}
    search = {
        "sampler": "random",
        "trials": 4,
        "seed": 3,
        "baseline": "none",
        "max_retries": 0,
        "max_failed_share": 1.0,
    }
    (tmp_path / "broken").touch()
    study = Study(tmp_path, data=data, search=search)
    code, text = study.command("run", str(study.file), "--name", study.name)
    assert code == 1, text
    assert set(study.ends().values()) == {"failed:process"}
    code, text = study.command("resume", study.name)
    assert set(study.ends().values()) == {"failed:process"}, "only when asked for"
    (tmp_path / "broken").unlink()
    code, text = study.command("resume", study.name, "--retry-failed")
    assert code == 0, text
    started = [e["id"] for e in study.events() if e["e"] == "start"]
    assert sorted(started) == [f"t{n:04d}" for n in range(4)], "the same trials"
    last = {e["id"]: e["stop"] for e in study.events() if e["e"] == "end"}
    assert set(last.values()) == {"completed"}
    assert study.mlflow_states() == {"FINISHED": 5}
