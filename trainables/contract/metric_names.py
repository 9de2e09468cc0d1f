"""Names of selecting metrics: `stsb_dev`, or `mean(stsb_dev,atec_dev)`."""

from __future__ import annotations

import re

DEV_SUFFIX = "_dev"
DEVICE_MEMORY = "device_memory_gb"  # of an evaluation: the most that the trial has held on its GPU so far, 1e9 bytes
HELD = "_held"  # of a set's held-out part: stsb_held_dev (`metric.holdout`)


def metric_parts(metric: str) -> list[str]:
    """The measured names that a selecting metric is made of, in order; blanks around them do not count.

    >>> metric_parts("mean( stsb_dev, atec_dev )")
    ['stsb_dev', 'atec_dev']

    Raises: ValueError if the text is neither a name nor a mean of names.
    """
    text = metric.strip()
    is_mean = text.startswith("mean(") and text.endswith(")")
    inside = text[len("mean(") : -1] if is_mean else text
    parts = [part.strip() for part in inside.split(",")]
    if not all(re.match(r"\w", part) for part in parts) or set("()") & set(inside) or (len(parts) > 1 and not is_mean):
        raise ValueError(f"metric: expected a name such as stsb_dev or mean(stsb_dev,atec_dev), got {metric!r}")
    return parts


def normal_metric(metric: str) -> str:
    """The one way in which a metric is written and stored: no blanks around its names.

    >>> normal_metric(" mean( stsb_dev, atec_dev )")
    'mean(stsb_dev,atec_dev)'

    Raises: ValueError as `metric_parts`.
    """
    parts = metric_parts(metric)
    return f"mean({','.join(parts)})" if "(" in metric else parts[0]


def held_metric(metric: str) -> str:
    """The same metric of the pairs that were held out.

    >>> held_metric("mean(stsb_dev,atec_dev)")
    'mean(stsb_held_dev,atec_held_dev)'
    """
    parts = [part.removesuffix(DEV_SUFFIX) + HELD + DEV_SUFFIX for part in metric_parts(metric)]
    return f"mean({','.join(parts)})" if "(" in metric else parts[0]
