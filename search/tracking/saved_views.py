"""Ready-made views of the MLflow UI: links that open the trials best first with their parameters, and so on.

MLflow keeps a shared view as an experiment tag; its format is not documented. A release that reads another one opens
its plain table, and a test reads the tag back.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

from search import schema
from search.space import Space

VIEW = "mlflow.sharedViewState."  # begins the tag's name
POINTS, STUDIES = "-points", "-studies"  # end the keys of the other views
NAMED = {"attributes.`Run Name`": 150, "runDateAndNestInfo": 50}  # columns that MLflow pins, widths in pixels
WIDE, NARROW = 150, 100


def of_study(study: str) -> str:
    """The filter that finds a study's run and those of its trials."""
    return f"tags.{schema.STUDY_ID} = '{study}'"


def saved_views(space: Space, study: str) -> dict[str, str]:
    """Experiment tags. `<study>` opens the table of trials, `<study>-points` the same grouped by configuration with the
    mean over its seeds, `<space>-studies` all studies.
    """
    params = [f"params.`{name}`" for name in space.params]
    table = _table(space, f"tags.{schema.ROLE} = 'trial' and {of_study(study)}", [*params, f"tags.`{schema.STOP}`"])
    group = {"mode": "tag", "groupByData": schema.OPTUNA_NUMBER}
    points = {**table, "groupBy": {"aggregateFunction": "average", "groupByKeys": [group]}}
    totals = (schema.TRIALS, schema.POINTS, schema.FAILED, schema.HOURS)
    studies = _table(space, f"tags.{schema.ROLE} = 'study'", [f"metrics.`{name}`" for name in totals])
    views = {
        study: _packed(f"{study}: trials, best first", table),
        f"{study}{POINTS}": _packed(f"{study}: configurations, mean over seeds", points),
        f"{space.name}{STUDIES}": _packed(f"{space.name}: studies", studies),
    }
    return {VIEW + key: view for key, view in views.items()}


def shared_view(space: Space) -> str:
    """The one of these tags that all studies of a space have in common."""
    return f"{VIEW}{space.name}{STUDIES}"


def _table(space: Space, runs: str, columns: Sequence[str]) -> dict[str, Any]:
    """The state of a table of `runs` (a filter), best first: the best value, then `columns`."""
    best = f"metrics.`{schema.best_key(space.metric.name)}`"
    return {
        "searchFilter": runs,
        "orderByKey": best,
        "orderByAsc": space.metric.mode == "min",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [best, *columns],
        "columnOrder": [*NAMED, best, *columns, "duration"],  # else by the alphabet
        "columnWidths": {**NAMED, best: WIDE, **dict.fromkeys([*columns, "duration"], NARROW)},
        "runsHiddenMode": "SHOWALL",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def view_address(server: str, experiment_id: str, key: str) -> str:
    """Where a server shows a saved view."""
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{schema.WORKFLOW}&viewStateShareKey={key}"


def _packed(name: str, state: dict[str, Any]) -> str:
    data = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": "deflate;" + data})
