"""A working folder with modules of the user's that are named like ours, or like libraries: no command imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

BIN = Path(sys.executable).parent
SCRIPT = "import helper\ndef train(config, report):\n    report(1, {'x_dev': helper.value(config)}, of=1)\n"
HELPER = "import random\ndef value(config):\n    return config['rate'] + 0 * random.random()\n"
SPACE = {
    "name": "study", "method": "script", "script": "train.py", "metric": {"name": "x_dev"},
    "params": {"rate": {"float": [0.0, 1.0]}}, "preset": {"rate": 0.5},
    "search": {"sampler": "random", "trials": 2}, "pruner": {"kind": "none"}, "resources": {"cpus": 1},
}  # fmt: skip


@pytest.mark.ray
@pytest.mark.costly
def test_commands_import_no_module_of_the_working_folder(tmp_path: Path) -> None:
    for name in ("search", "trainables", "analysis", "optuna", "random"):
        module = tmp_path / ("{}.py" if name in ("search", "random") else "{}/__init__.py").format(name)
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"raise RuntimeError('the {name} of the working folder')")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)  # of another name it is found
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "PYTHONPATH")}
    for command in ("search check space.yaml", "search run space.yaml", "search logs", "analysis best"):
        program, *words = command.split()
        done = subprocess.run(
            [str(BIN / program), *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "of the working folder" not in done.stdout + done.stderr
