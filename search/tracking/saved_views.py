"""Ready-made views of the MLflow UI: one link that opens the trials best first with their parameters.

MLflow keeps a shared view as an experiment tag `mlflow.sharedViewState.<key>`; the format is not documented (MLflow is
pinned to a minor version, and a test reads the tag back).
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from search import schema
from search.space import Space

CHARTS = "-charts"  # ends the key of a view that draws


def saved_views(space: Space, study: str) -> dict[str, str]:
    """Experiment tags: `<study>` opens the table, `<study>-charts` parallel coordinates and learning curves."""
    metric = schema.stored(space.metric.name)
    best = schema.best_key(space.metric.name)
    table: dict[str, Any] = {
        "searchFilter": f"tags.{schema.ROLE} = 'trial' and tags.{schema.STUDY_ID} = '{study}'",
        "orderByKey": f"metrics.`{best}`",
        "orderByAsc": space.metric.mode == "min",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [f"metrics.`{best}`"]
        + [f"params.`{name}`" for name in space.params]
        + [f"tags.`{schema.STOP}`"],
        "columnOrder": [],
        "columnWidths": {},
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
    section = {"uuid": "search", "name": "Search", "display": True, "isReordered": False, "columns": 1}  # wide charts
    common = {"runsCountToCompare": 20, "deleted": False, "isGenerated": False, "metricSectionId": "search"}
    parallel = {
        "type": "PARALLEL",
        "uuid": "parallel",
        "selectedParams": list(space.params),
        "selectedMetrics": [best],
        "showAllRuns": True,
    }
    curves = {
        "type": "LINE",
        "uuid": "curves",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "lineSmoothness": 0,
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "useGlobalLineSmoothing": True,
        "useGlobalXaxisKey": True,
    }
    charts = {
        **table,
        "compareRunSections": [section],
        "compareRunCharts": [{**common, **parallel}, {**common, **curves}],
    }
    return {
        f"mlflow.sharedViewState.{study}": _packed(f"{study}: trials, best first", table),
        f"mlflow.sharedViewState.{study}{CHARTS}": _packed(f"{study}: charts", charts),
    }


def view_address(server: str, experiment_id: str, key: str) -> str:
    """Where a server shows a saved view; the charts in the mode that draws them."""
    address = f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{schema.WORKFLOW}&viewStateShareKey={key}"
    return f"{address}&compareRunsMode=CHART" if key.endswith(CHARTS) else address


def unpacked(tag: str) -> dict[str, Any]:
    """The state in a tag that `saved_views` made."""
    packed = json.loads(tag)["state"].removeprefix("deflate;")
    state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return state


def _packed(name: str, state: dict[str, Any]) -> str:
    data = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": "deflate;" + data})
