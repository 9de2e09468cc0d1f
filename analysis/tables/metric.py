"""The metric that trials are valued by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from analysis.errors import InputError
from search.schema import DEV_SUFFIX, SHOWN_SCALE, TEST_SUFFIX
from trainables.contract.trial import at_width, metric_parts, normal_metric

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class Metric:
    """A dev metric or the mean of several. name: as typed, without blanks; parts: the stored metrics it is made of."""

    name: str
    parts: tuple[str, ...]
    mode: Mode = "max"
    explicit_mode: bool = False  # whether the mode was typed: `min(eval_loss_dev)`

    @property
    def sign(self) -> float:
        """1 if larger is better, else -1."""
        return 1.0 if self.mode == "max" else -1.0

    @property
    def scale(self) -> float:
        """What a value is multiplied by when printed for people: 100 for dev correlations, as papers do, else 1."""
        return SHOWN_SCALE if all(at_width(part)[0].endswith(DEV_SUFFIX) for part in self.parts) else 1.0


def parse_metric(text: str, mode: Mode = "max") -> Metric:
    """`stsb_dev`, or `mean(stsb_dev,atec_dev)`; either within `min(...)` or `max(...)`, which sets what is better.

    Raises: InputError for test metrics, which rank nothing, and for anything that is no metric name.
    """
    if explicit := re.fullmatch(r"\s*(min|max)\((.+)\)\s*", text):
        mode, text = cast(Mode, explicit[1]), explicit[2]
    try:
        parts = tuple(metric_parts(text))
    except ValueError as error:
        raise InputError(str(error)) from None
    for part in parts:
        if part.endswith(TEST_SUFFIX):
            raise InputError(f"'{part}' is a test metric: those are reported, never ranked; use a *{DEV_SUFFIX} metric")
    return Metric(normal_metric(text), parts, mode, explicit is not None)
