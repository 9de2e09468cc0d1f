"""What a study ran on: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("contrastive-search", "torch", "transformers", "tokenizers", "ray", "optuna", "mlflow", "numpy", "scipy")


def environment() -> dict[str, Any]:
    """Facts for `environment.json`; unknown ones are None. Neither torch nor Ray is imported."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": commit(Path(__file__).parents[2]),
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cpus": os.cpu_count()},
        "gpus": _lines(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]),
    }


def commit(folder: Path) -> str | None:
    """The git commit of a source folder, with `+changes` where files differ from it; None outside a repository."""
    head = _lines(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if not head:
        return None
    return head[0] + ("+changes" if _lines(["git", "-C", str(folder), "status", "--porcelain", "-uno"]) else "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lines(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
