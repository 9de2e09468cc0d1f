"""What a training method is: a handful of functions over shared building blocks.

A method turns training texts into token columns once (`prepare`), decides the order of the examples (`plan`), makes the
views of a batch (`views`) and scores their vectors (`loss`). State across steps is an argument, never hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainables.configs import RunConfig

Tokens = NDArray[np.int32]  # one sentence: token (or word) ids without special tokens, not truncated
Views = Mapping[str, Sequence[Tokens]]  # role ("anchor", "positive", ...) -> one sequence per example
Encoded = Mapping[str, Tensor]  # role -> (N, D) vectors of the global batch, any norm
T = TypeVar("T")


@dataclass(frozen=True)
class TokenColumn:
    """Token sequences of a corpus column, laid end to end (possibly memory-mapped and shared between processes).

    flat: (total,) int32 ids; starts: (n + 1,) int64 offsets; sequence i is flat[starts[i]:starts[i + 1]].
    """

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> Tokens:
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def take(self, index: NDArray[np.int64]) -> list[Tokens]:
        """The sequences at `index`, in that order."""
        return [self[int(i)] for i in index]


@dataclass(frozen=True)
class Examples:
    """Prepared training data of one trial.

    columns: role or column name -> token sequences; all of the same length n.
    order: (n,) example numbers from easiest to hardest (SelfCCL), else None.
    facts: numbers worth logging once, such as an augmentation's coverage in [0, 1] or class shares.
    """

    columns: Mapping[str, TokenColumn]
    order: NDArray[np.int64] | None = None
    facts: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class Network(Protocol):
    """What a method trains. `nn.Module` with these three functions (see `encoder.SentenceNetwork`, `textcnn.py`)."""

    def encode(self, views: Views) -> dict[str, Tensor]:
        """Training-mode vectors per role, (N, H), before any head; one forward pass over all roles."""

    def project(self, pooled: Mapping[str, Tensor]) -> Encoded:
        """Heads, applied to the global batch (so that batch-norm sees all workers' examples)."""

    def embed(self, sequences: Sequence[Tokens]) -> Tensor:
        """Evaluation-time vectors (n, D) in the given order, no gradient."""


class Workshop(Protocol):
    """What `prepare` may use: tokenising, the untouched encoder and a cache, each computed once per content."""

    @property
    def language(self) -> str:
        """ "en" or "zh"."""

    def tokenise(self, texts: Sequence[str]) -> TokenColumn:
        """Token ids of every text without special tokens; cached by content hash and tokenizer."""

    def embed(self, column: TokenColumn, config: Any) -> NDArray[np.float32]:
        """(n, H) vectors of the untouched encoder in evaluation mode, pooling as in `config`."""

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], T]) -> T:
        """`make()`, or what it gave before for equal `parts` (hashed); kept on disk and in this process."""

    def parse(self, texts: Sequence[str]) -> Any:
        """Dependency parses of every text (SDA); cached by content hash and parser."""


Texts = Mapping[str, Sequence[str]]  # column name -> texts: {"sentence"} or {"anchor", "positive", "negative"}
Prepare = Callable[[Texts, Any, int, Workshop], Examples]  # (texts, config, seed, workshop)
Plan = Callable[[Examples, Any, int], Iterator[NDArray[np.int64]]]  # (examples, config, seed) -> batches of numbers
MakeViews = Callable[[Examples, NDArray[np.int64], Any, np.random.Generator], Views]
Loss = Callable[[Encoded, Any], Tensor]
MakeNetwork = Callable[[Any, Any, int], nn.Module]  # (config, source of weights or vectors, seed)
MakeOptimiser = Callable[[nn.Module, Any, int, int], tuple[Optimizer, LRScheduler]]  # (net, config, steps, steps/epoch)


@dataclass(frozen=True)
class Method:
    """One training method (`methods.py` is the table of them).

    prepared_from: the configuration's fields that `prepare` reads, and "seed" if it does: trials that agree in them
        share their prepared examples. A test watches what `prepare` really reads.
    """

    name: str
    config: type[RunConfig]
    prepare: Prepare
    plan: Plan
    views: MakeViews
    loss: Loss
    network: MakeNetwork
    optimiser: MakeOptimiser
    prepared_from: tuple[str, ...] = ()
