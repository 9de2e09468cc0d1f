"""Points that failed for a cause outside them come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from lives import Study

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_failed_trials_come_back_when_asked_for(tmp_path: Path) -> None:
    columns = {"sleep": "0", "fault": "kill_while", "marker": str(tmp_path / "broken"), "above": "0"}
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
