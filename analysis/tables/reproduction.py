"""How to run a study again: its environment, its space, its commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import yaml

from analysis.tables.study import Study
from search.schema import ENVIRONMENT_FILE


def environment(study: Study) -> dict[str, str]:
    """Versions, commit and machine of the study, flat; {} if they were not stored."""
    content = study.store.artifact(study.stored, ENVIRONMENT_FILE)
    stored = json.loads(content) if content else {}
    flat: dict[str, str] = {}
    for name, value in stored.items():
        if isinstance(value, Mapping):
            flat |= {str(k): str(v) for k, v in value.items() if v is not None}
        elif value:
            flat[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return flat


def space_text(study: Study) -> str:
    """The resolved space as a space file."""
    return yaml.safe_dump(dict(study.space), sort_keys=False, allow_unicode=True, width=100)


def commands(study: Study) -> list[str]:
    """What to type to run the study again, given its space file and the commit in `environment`."""
    name = shlex.quote(study.stored.experiment)
    commit = environment(study).get("commit", "").removesuffix("+changes")
    checkout = [f"git checkout {commit} && pip install ."] if commit else []
    again = [f"search run {name}.yaml --name {shlex.quote(study.name)}"]
    if (study.trials["stage"] == "confirm").any():
        confirmed = study.trials[study.trials["stage"] == "confirm"]
        points = confirmed["point"].nunique() - int(confirmed.loc[confirmed["baseline"], "point"].nunique())
        seeds = int(confirmed.groupby("point").size().max())
        again.append(f"search confirm {shlex.quote(study.name)} --top {max(points, 1)} --seeds {seeds}")
    return [*checkout, *again, f"analysis best --study {shlex.quote(study.name)}"]
