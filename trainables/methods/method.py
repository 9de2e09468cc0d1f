"""What a training method is: a handful of functions over shared building blocks.

A method turns training texts into token columns once (`prepare`), decides the order of the examples (`plan`), makes the
views of a batch (`views`) and scores their vectors (`loss`). State across steps is an argument, or the network's: a
second encoder or a queue lies in its modules and buffers and moves on in `Network.after_step`, so that it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainables.contract.config import RunConfig
from trainables.contract.declaration import Declaration
from trainables.contract.errors import PluginError
from trainables.contract.registry import method_object
from trainables.data.tokens import Texts, TokenColumn
from trainables.encoders.network import Encoded, Network, Views

T = TypeVar("T")


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


@dataclass(frozen=True)
class Batch:
    """Training examples of one optimiser step.

    numbers: (N,) of examples; epoch: the pass over the data that they belong to, from 0.
    """

    numbers: NDArray[np.int64]
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())


class TextTools(Protocol):
    """What `prepare` may use: tokenising, the untouched encoder and a cache, each computed once per content."""

    @property
    def language(self) -> str:
        """The data's language by its code, such as "en"."""

    def tokenise(self, texts: Sequence[str], prompt: str = "") -> TokenColumn:
        """Token ids of every text without special tokens; cached by content hash and tokenizer.

        prompt: "query" or "document" = with that prompt of the space before every text, if it has one.
        """

    def embed(self, column: TokenColumn, config: Any) -> NDArray[np.float32]:
        """(n, H) vectors of the untouched encoder in evaluation mode, pooling as in `config`."""

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], T]) -> T:
        """`make()`, or what it gave before for equal `parts` (hashed); kept on disk and in this process."""

    def parse(self, texts: Sequence[str]) -> Any:
        """Dependency parses of every text (SDA); cached by content hash and parser."""


Prepare = Callable[[Texts, Any, int, TextTools], Examples]  # (texts, config, seed, tools)
MakeBatches = Callable[[Examples, Any, int], Iterator[Batch]]  # (examples, config, seed)
MakeViews = Callable[[Examples, Batch, Any, np.random.Generator], Views]
Loss = Callable[[Encoded, Any], Tensor]
MakeNetwork = Callable[[Any, Any, int], Network]  # (config, source of weights or vectors, seed)
MakeOptimiser = Callable[[nn.Module, Any, int, int], tuple[Optimizer, LRScheduler]]  # (net, config, steps, steps/epoch)


WriteExport = Callable[[nn.Module, Any, Any, str, Path], None]  # (network, config, source, language, new folder)


@dataclass(frozen=True)
class Untrained:
    """What is scored before training.

    network: made like a method's network; reads: the configuration's fields (and "seed") that decide its vectors, so
    that trials that agree in them share the score.
    """

    network: MakeNetwork
    reads: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One training method, whole (`contract.registry` is the table of them).

    Attributes:
        declaration: what is known of it without torch.
        prepared_from: the configuration's fields that `prepare` reads, and "seed" if it does: trials that agree in them
            share their prepared examples. A test watches what `prepare` really reads.
        loss, optimiser: both None = nothing is trained: the network looks at the vectors that `project` is given, and
            is evaluated at the same numbers of examples as if it were (whitening).
        untrained: what is scored before training; None = a fresh network, scored anew in every trial.
        export: writes a trained network as a folder that other programs load (`declaration.usage` says how); None = as
            SentenceTransformer, which takes a `SentenceNetwork`.
    """

    declaration: Declaration
    prepare: Prepare
    plan: MakeBatches
    views: MakeViews
    network: MakeNetwork
    loss: Loss | None
    optimiser: MakeOptimiser | None
    prepared_from: tuple[str, ...] = ()
    untrained: Untrained | None = None
    export: WriteExport | None = None

    def __post_init__(self) -> None:
        if (self.loss is None) is not (self.optimiser is None):
            raise ValueError(f"method {self.name!r}: expected both a loss and an optimiser, or None for both")

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def config(self) -> type[RunConfig]:
        """The class of its configurations."""
        config = self.declaration.config
        assert issubclass(config, RunConfig), "a Declaration without a body of its own has one"
        return config


def load_method(name: str) -> Method:
    """The method of this name, its code imported.

    Raises: PluginError for an unknown name, or a method from outside that cannot be used.
    """
    found = method_object(name)
    if not isinstance(found, Method):
        raise PluginError(f"method {name!r}: expected a trainables.methods.method.Method, got {type(found).__name__}")
    return found
