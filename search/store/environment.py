"""What a study ran on: versions, commit, machine."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from trainables.contract.limits import cores

PACKAGES = ("contrastive-search", "torch", "transformers", "tokenizers", "ray", "optuna", "mlflow", "numpy", "scipy")


def environment(encoder: Sequence[str] = ()) -> dict[str, Any]:
    """Facts for `environment.json`; unknown ones are None. Neither torch nor Ray is imported.

    Args: encoder: what is to be known of it, as why its batches are padded.
    """
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": commit(Path(__file__).parents[2]),
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cpus": cores()},
        "gpus": _lines(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]),
        **({"encoder": list(encoder)} if encoder else {}),
    }


def moved_on(file: Path) -> list[str]:
    """What software is another than when a study began: one line, or none. Args: file: its `environment.json`."""
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    now = environment()
    pairs = [(name, was, now["versions"].get(name)) for name, was in before.get("versions", {}).items()]
    pairs.append(("commit", (before.get("commit") or "unknown")[:12], (now["commit"] or "unknown")[:12]))
    other = [f"{name} {was} is now {is_}" for name, was, is_ in pairs if was != is_]
    return [f"since the study began {', '.join(other)}: results before and after may differ"] if other else []


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
