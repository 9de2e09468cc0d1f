"""Tables of trials written out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd


def table(values: Mapping[str, list[float]], confirmed: Mapping[str, list[float]] | None = None) -> pd.DataFrame:
    """Trials of points by name, seeds 0, 1, ... in the search, 10, 11, ... afresh; the first is the baseline."""
    rows = [(p, "search", seed, v) for p, vs in values.items() for seed, v in enumerate(vs)]
    rows += [(p, "confirm", 10 + seed, v) for p, vs in (confirmed or {}).items() for seed, v in enumerate(vs)]
    frame = pd.DataFrame(rows, columns=["point", "stage", "seed", "value"])
    frame["run_id"] = frame["trial"] = [f"t{i}" for i in range(len(frame))]
    frame["stop"], frame["baseline"] = "completed", frame["point"] == next(iter(values))
    return frame
