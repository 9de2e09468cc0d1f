"""Extra behaviour of a trial by formula (`fake_trial`), passed with the data of its space."""

from __future__ import annotations

import json
from typing import Any

from trainables.contract.trial import TrialSpec


def orders(**given: object) -> dict[str, str]:
    """For `data.columns` of a space, in a role that builtin data has no use for.

    sleep: seconds before every step; fault: its kind, in the second evaluation of points with a learning rate from
    `above` on; marker: file that some faults wait for; enough: GPUs from which memory suffices; hold:
    file without which no trial completes from the 21st on.
    """
    return {"subset": json.dumps(given)}


def ordered(spec: TrialSpec) -> dict[str, Any]:
    """What `orders` has put into a trial's data."""
    found: dict[str, Any] = json.loads((spec.data.get("columns") or {}).get("subset", "{}"))
    return found
