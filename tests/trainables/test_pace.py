"""The measured pace of a trial: what is timed runs as the trial itself would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from test_methods import spec_of

from trainables.data.tokens import Tokens
from trainables.encoders.network import SentenceNetwork
from trainables.training import pace
from trainables.training.distributed import World

pytestmark = pytest.mark.costly


def test_evaluations_are_timed_in_the_precision_of_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    embed, in_bf16 = SentenceNetwork.embed, list[bool]()

    def watched(network: SentenceNetwork, sequences: Sequence[Tokens]) -> torch.Tensor:
        in_bf16.append(torch.is_autocast_enabled("cpu"))
        return embed(network, sequences)

    monkeypatch.setattr(SentenceNetwork, "embed", watched)
    monkeypatch.setattr(pace, "SECONDS", 0.0)
    found = pace.paces([spec_of("simcse", precision=precision) for precision in ("bf16", "fp32")], World())
    assert in_bf16 == [True, False]
    assert [one.examples for one in found] == [16, 16]
