"""Names of selecting metrics: `stsb_dev`, `nfcorpus_ndcg10_dev`, or `mean(stsb_dev,atec_dev)`."""

from __future__ import annotations

import re

DEV_SUFFIX = "_dev"
DEVICE_MEMORY = "device_memory_gb"  # of an evaluation: the most that the trial has held on its GPU so far, 1e9 bytes
MICRO_BATCH = "micro_batch"  # of a first evaluation: the examples that `micro_batch: auto` encodes at a time
ROWS_LEFT_OUT = "rows_left_out"  # of a first evaluation: training rows that lack a text, where there are any
HELD = "_held"  # of a set's held-out part: stsb_held_dev (`metric.holdout`)
RETRIEVAL_MEASURES = ("ndcg10", "mrr10", "recall10", "recall100")  # <set>_ndcg10_dev, ... of a retrieval set
QUERIES_SUFFIX = "_queries"  # nfcorpus_ndcg10_queries: the measure of each query, beside the cosines of the dev pairs
_WRITTEN = dict(zip(RETRIEVAL_MEASURES, ("nDCG@10", "MRR@10", "recall@10", "recall@100"), strict=True))


def retrieval_measure(metric: str) -> str | None:
    """The measure of a retrieval metric in the field's notation, None of a metric that is no such.

    >>> retrieval_measure("nfcorpus_ndcg10_dev")
    'nDCG@10'
    """
    measure = metric.removesuffix(DEV_SUFFIX).rpartition("_")[2]
    return _WRITTEN.get(measure) if metric.endswith(DEV_SUFFIX) else None


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
