"""How to run a study again: its environment, its space, its commands."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping

import yaml

from analysis.tables.study import Study
from search.schema import CONFIRMATION, ENVIRONMENT_FILE


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
    again += [f"search confirm {shlex.quote(study.name)} {options}" for options in _confirmations(study)]
    return [*checkout, *again, f"analysis best --study {shlex.quote(study.name)}"]


def _confirmations(study: Study) -> list[str]:
    """The options of each `search confirm` that was run, in order; one that a resume took up again stands once."""
    tags = [tag for tag in study.stored.tags if tag.startswith(CONFIRMATION)]
    plans = [study.stored.tags[tag] for tag in sorted(tags, key=lambda tag: int(tag.removeprefix(CONFIRMATION)))]
    found = [re.findall(r"(\w+) (\d+)", plan) for plan, _ in itertools.groupby(plans)]  # "trials 20", "top 3, seeds 5"
    options = [" ".join(f"--{name} {number}" for name, number in plan) for plan in found if plan]
    confirmed = study.trials[study.trials["stage"] == "confirm"]
    if not options and len(confirmed):  # by an earlier version, which did not say
        points = confirmed["point"].nunique() - int(confirmed.loc[confirmed["baseline"], "point"].nunique())
        seeds = int(confirmed.groupby("point").size().max())
        options = [f"--top {max(points, 1)} --seeds {seeds}"]
    return options
