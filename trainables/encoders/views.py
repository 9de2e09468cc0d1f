"""What goes into a network and what comes out, by role ("anchor", "positive", ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from trainables.data.tokens import Tokens

Views = Mapping[str, Sequence[Tokens]]  # role -> one sequence per example
Encoded = Mapping[str, Tensor]  # role -> (N, D) vectors of the global batch, any norm
