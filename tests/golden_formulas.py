"""Reference cases computed from the formulas, for the parts without public code: EdaCSE, SDA's loss, SelfCCL."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trainables.methods.edacse import method as edacse
from trainables.methods.edacse.config import EdacseConfig
from trainables.methods.losses import info_nce, info_nce_margin
from trainables.methods.selfccl.method import cosine_distances, difficulty_order, paced_size, triplet_classes

TOLERANCE = 1e-8


def check_formula_cases(data: dict[str, Any]) -> None:
    checks = {
        "edacse_loss": _edacse_loss,
        "sda_loss": _sda_loss,
        "selfccl_scoring": _scoring,
        "selfccl_pacing": _pacing,
    }
    for case in data["cases"]:
        checks[case["kind"]](case)


def _vectors(case: dict[str, Any], *names: str) -> list[torch.Tensor]:
    return [torch.tensor(case[name], dtype=torch.float64) for name in names]


def _close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, atol=TOLERANCE, rtol=0)


def _edacse_loss(case: dict[str, Any]) -> None:
    first, second, augmented = _vectors(case, "view1", "view2", "augmented")
    tau = case["temperature"]
    z = {"anchor": first, "positive": second, "augmented": augmented}
    _close(edacse.loss(z, EdacseConfig(lambda_=case["lam"], temperature=tau)), case["loss"])
    _close(edacse.loss(z, EdacseConfig(lambda_=case["lam"], temperature=tau, max_marks=0)), case["loss_views"])
    _close(info_nce(first, augmented, tau), case["loss_augmented"])


def _sda_loss(case: dict[str, Any]) -> None:
    anchor, positive, negation = _vectors(case, "anchor", "positive", "negation")
    tau, delta = case["temperature"], case["delta"]
    _close(info_nce_margin(anchor, positive, negation, tau, delta), case["loss"])
    everyone = info_nce_margin(anchor, positive, negation, tau, delta, "all")
    _close(everyone, case["loss_if_all_negations_were_used"])


def _scoring(case: dict[str, Any]) -> None:
    anchor, positive, negative = (np.array(case[name]) for name in ("anchor", "positive", "negative"))
    near, far = cosine_distances(anchor, positive), cosine_distances(anchor, negative)
    _close(near, case["distance_positive"])
    _close(far, case["distance_negative"])
    _close(near - far, case["difficulty"])
    assert near[0] == far[0]  # row 0 has the same vector twice
    assert triplet_classes(near, far, case["margin"]).tolist() == case["triplet_class"]
    rng = np.random.default_rng(0)
    for order in ("ascending", "descending"):
        assert difficulty_order(near - far, order, rng).tolist() == case[f"{order}_order"]


def _pacing(case: dict[str, Any]) -> None:
    for t, size in case["size_at_t"]:
        assert paced_size(t, case["T"], case["lam"], case["k"]) == size
