"""A refresh of the live page of a study of 10,000 trials with 12 evaluations each, while 20 evaluations a second come.

The first refresh reads the whole journal; the later ones read what is new.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TRIALS, EVALUATIONS, RUNNING, NEW = 10_000, 12, 200, 40  # NEW: evaluations between two refreshes, which are 2 s apart


def run(runs: int) -> dict[str, Any]:
    """Processor seconds of the first refresh and of later ones, `runs` of them (median)."""
    from search.console.live_page import state
    from search.console.status import StudyReader
    from search.space import load_space
    from search.store.layout import StudyFolder
    from trainables.contract import formats

    space = load_space(Path(__file__).parents[1] / "spaces" / "quickstart.yaml")
    with tempfile.TemporaryDirectory() as storage:
        folder = StudyFolder(storage, "refresh-1")
        folder.local.mkdir()
        folder.space.write_text(space.to_yaml())
        with folder.journal.open("w") as file:
            for event in events(space.resolved(), formats.stamp(formats.JOURNAL)):
                file.write(json.dumps(event, separators=(",", ":")) + "\n")
            file.flush()
            reader, seconds = StudyReader(folder), []
            for number in range(runs + 1):
                began = time.process_time()
                state(reader, 0)
                seconds.append(time.process_time() - began)
                for k in range(NEW):
                    file.write(json.dumps(evaluation(TRIALS - 1 - k, EVALUATIONS + number)) + "\n")
                file.flush()
        size = folder.journal.stat().st_size
    later = statistics.median(seconds[1:])
    return {"rows": [{"journal MB": size / 1e6, "first refresh s": seconds[0], "later refresh s": later}]}


def events(space: dict[str, Any], stamp: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"e": "space", "t": 0, "space": space, **stamp}
    yield {"e": "session", "t": 0, "stage": "search"}
    for n in range(TRIALS):
        point = {"learning_rate": 1e-5 * (1 + n % 97)}
        yield {"e": "start", "t": n, "id": f"t{n:04d}", "number": n, "repeat": 0, "seed": 0, "stage": "search",
               "point": point, "params": point, "point_id": str(n)}  # fmt: skip
        yield from (evaluation(n, k) for k in range(1, EVALUATIONS + 1))
        if n < TRIALS - RUNNING:
            last = evaluation(n, EVALUATIONS)
            yield {"e": "end", "t": n, "id": f"t{n:04d}", "stop": "completed", "reason": "", "traceback": "",
                   **{key: last[key] for key in ("best", "best_at", "examples", "seconds")}}  # fmt: skip


def evaluation(n: int, k: int) -> dict[str, Any]:
    value = 0.7 + 0.1 * ((n * 7919) % 1000) / 1000 - 0.01 / k
    metrics = dict.fromkeys(("stsb_dev", "sickr_dev", "alignment", "uniformity", "loss", "device_memory_gb"), value)
    return {"e": "eval", "t": n, "id": f"t{n:04d}", "value": value, "best": value, "best_at": 1000 * k,
            "examples": 1000 * k, "planned": 1000 * EVALUATIONS, "seconds": 5.0 * k, "metrics": metrics}  # fmt: skip
