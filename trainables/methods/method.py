"""What a training method is, and the building blocks that most methods share (SimCSE's way, methods 1.7).

A method turns training texts into token columns once (`prepare`), decides the order of the examples (`plan`), makes the
views of a batch (`views`) and scores their vectors (`loss`). State across steps is an argument, or the network's: a
second encoder or a queue is in its modules and buffers and moves on in `Network.after_step`, so that it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainables.contract.config import EncoderConfig, RunConfig
from trainables.contract.declaration import Declaration
from trainables.contract.errors import DataError, PluginError
from trainables.contract.registry import method_object
from trainables.contract.trial import SAMPLE, SHUFFLE
from trainables.data.parses import Parses, parsed
from trainables.data.tokens import StoredTexts, Texts, TokenCache, TokenColumn
from trainables.encoders.load import EncoderSource, LoadedEncoder
from trainables.encoders.network import Encoded, Network, SentenceNetwork, Views
from trainables.encoders.packing import to_device
from trainables.methods.batches import cut, one_set_each, text_numbers
from trainables.methods.losses import matryoshka
from trainables.methods.optimiser import adamw

T = TypeVar("T")
TEXT = "text of "  # before a role: the hashes of its texts, in `Examples.numbers`
MASK_TOKENS = ("[MASK]", "<mask>")  # BERT's and RoBERTa's family


@dataclass(frozen=True)
class Examples:
    """Prepared training data of one trial.

    Attributes:
        columns: role or column name -> token sequences of texts; all of the same length n. `batches: no_duplicates`
            compares them, so other sequences are fields of a subclass.
        order: (n,) example numbers from easiest to hardest (SelfCCL), else None.
        facts: numbers worth logging once, such as an augmentation's coverage in [0, 1] or class shares.
        numbers: name -> (n,) or (n, D) numbers that the loss gets beside the vectors, such as a pair's score.
        sets: (n,) which of several training sets an example is of, from 0; None = there is one.
        prompt: tokens of the prompt of queries, which a sentence begins with.
    """

    columns: Mapping[str, TokenColumn]
    order: NDArray[np.int64] | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    numbers: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sets: NDArray[np.int64] | None = None
    prompt: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Batch:
    """Training examples of one optimiser step.

    Attributes:
        numbers: (N,) example numbers.
        epoch: the pass over the data that they belong to, from 0.
    """

    numbers: NDArray[np.int64]
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def numbers_by_name(self, examples: Examples, device: torch.device) -> dict[str, Tensor]:
        """(N,) or (N, D) numbers of the whole batch by name (`Examples.numbers`); every worker has them all."""
        return {name: to_device(values[self.numbers], device) for name, values in examples.numbers.items()}


@dataclass(frozen=True, eq=False)
class TextTools:
    """What `prepare` may use: tokenising, the untouched encoder and a cache, each computed once per content.

    Attributes:
        language: the data's by its code, such as "en".
        parser: as `trainables.data.parses.parsed` takes it.
        source: the untouched encoder, or word vectors.
        tokens: the tokenizer with its cache.
        device: where `embed` runs.
        prompts: of the space, by kind ("query", "document").
        seen: the columns that were tokenised, if wanted.
        tools_for: gives the same tools for a transformer of another name.
    """

    language: str
    parser: str | None
    source: EncoderSource
    tokens: TokenCache
    device: torch.device
    prompts: Mapping[str, str] = field(default_factory=dict)
    seen: list[TokenColumn] | None = None
    tools_for: Callable[[str], TextTools] | None = None

    def tokenise(self, texts: Sequence[str], prompt: str = "") -> TokenColumn:
        """Token ids of every text without special tokens; cached by content hash and tokenizer.

        prompt: "query" or "document" = with that prompt of the space before every text, if it has one.
        """
        column = self.tokens.tokenise(texts, self.prompts.get(prompt, ""))
        if self.seen is not None:
            self.seen.append(column)
        return column

    def embed(self, column: TokenColumn, config: Any) -> NDArray[np.float32]:
        """(n, H) vectors of the untouched encoder in evaluation mode, pooling as in `config`."""
        assert isinstance(self.source, LoadedEncoder), "only methods on an encoder score with it"
        source = self.source

        def make() -> NDArray[np.float32]:
            network: Any = plain_encoder(config, source).to(self.device)
            vectors: NDArray[np.float32] = network.embed(column.take(np.arange(len(column)))).cpu().numpy()
            return vectors

        read = read_by(config, 0, PLAIN_ENCODER.reads)
        prompts = [] if config.include_prompt else [sorted(source.prompts.items())]
        # of folders with the same weights: where texts are cut, and the special tokens around them
        around = [source.facts.evaluated_length, list(source.prefix), list(source.suffix)]
        return self.cached("vectors", [source.fingerprint, around, *read, *prompts, column], make)

    def cached(self, name: str, parts: Sequence[object], make: Callable[[], T]) -> T:
        """`make()`, or its earlier result for equal `parts` (hashed); stored on disk and in this process."""
        return self.tokens.cache.cached(name, parts, make)

    def parse(self, texts: Sequence[str]) -> Parses:
        """Dependency parses of every text (SDA); cached by content hash and parser. Raises: ParserError."""
        return parsed(texts, self.parser, self.language, self.cached)


def read_by(config: RunConfig, seed: int, names: Sequence[str]) -> list[Any]:
    """The values of these fields of a configuration, where "seed" is the trial's."""
    values = (seed if name == "seed" else getattr(config, name) for name in names)
    return [list(v) if isinstance(v, tuple) else v for v in values]


# ------------------------------------------------------------ examples
def tokenised_sentences(texts: Texts, config: RunConfig, seed: int, tools: TextTools) -> Examples:
    """One column "sentence". An empty line becomes a single blank (methods 2.1)."""
    del config, seed
    sentences = texts["sentence"]
    whole = sentences if isinstance(sentences, StoredTexts) else [s or " " for s in sentences]
    return Examples({"sentence": tools.tokenise(whole, "query")})


def tokenised_triplets(texts: Texts, config: RunConfig, seed: int, tools: TextTools) -> Examples:
    """Columns "anchor", "positive" of pairs, with "negative" NLI-like triplets (methods 2.2); "negative_2" ... if there
    are."""
    del config, seed
    kinds = {role: "query" if role == "anchor" else "document" for role in texts}
    return Examples({role: tools.tokenise(texts[role], kind) for role, kind in kinds.items()})


def text_rows(examples: Examples) -> NDArray[np.int64]:
    """(n, k) hashes of the texts of every example: of pairs by text, of others by token ids."""
    known = [numbers for name, numbers in examples.numbers.items() if name.startswith(TEXT)]
    by_tokens = (text_numbers((c[i].tobytes() for i in range(len(c))), len(c)) for c in examples.columns.values())
    return np.stack(known or list(by_tokens), axis=1)


def mask_text(tools: TextTools) -> str:
    """The mask token as it is written in texts. Raises: DataError if the tokenizer has none that is known here."""
    for text in MASK_TOKENS:
        if len(tools.tokenise([text])[0]) == 1:
            return text
    raise DataError(f"expected a tokenizer with one of {', '.join(MASK_TOKENS)}, found neither")


def share_changed(before: Sequence[str], after: Sequence[str]) -> float:
    """Share of the texts that differ, in [0, 1]; 0 of no texts."""
    return sum(a != b for a, b in zip(before, after, strict=True)) / max(1, len(before))


# ------------------------------------------------------------ batches and views
def sampled(n: int, config: RunConfig, seed: int) -> NDArray[np.int64]:
    """The example numbers of a run: a random sample of `sample_size` of n, in file order, or all if there are fewer."""
    if config.sample_size is None or config.sample_size >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, SAMPLE]).choice(n, config.sample_size, replace=False))


def texts_apart(examples: Examples, config: RunConfig) -> NDArray[np.int64] | None:
    """The `text_rows` that no batch may repeat, None with `batches: shuffled`."""
    apart = isinstance(config, EncoderConfig) and config.batches == "no_duplicates"
    return text_rows(examples) if apart else None


def shuffled_epochs(examples: Examples, config: RunConfig, seed: int) -> Iterator[Batch]:
    """Batches: every epoch a new permutation, including the last smaller batch (if it has at least 2 examples)."""
    chosen, texts, size = sampled(len(examples), config, seed), texts_apart(examples, config), config.batch_size
    for epoch in range(config.epochs):
        rng = np.random.default_rng([seed, SHUFFLE, epoch])
        if examples.sets is not None and isinstance(config, EncoderConfig) and config.sets != "joined":
            batches = one_set_each(chosen, examples.sets, config.sets, config.set_weights, size, rng, texts)
        else:
            batches = cut(rng.permutation(chosen), size, texts)
        for batch in batches:
            if len(batch) > 1:  # a single example has no negatives: loss 0, batch-norm undefined
                yield Batch(batch, epoch)


def sentence_twice(examples: Examples, batch: Batch, config: object, rng: np.random.Generator) -> Views:
    """Every sentence twice in one forward pass; the two copies draw their own dropout masks (SimCSE Sec. 3)."""
    del config, rng
    sentences = examples.columns["sentence"].take(batch)
    return {"anchor": sentences, "positive": sentences}


def all_columns(examples: Examples, batch: Batch, config: object, rng: np.random.Generator) -> Views:
    """Every column as the role of its name, such as the sentences of a triplet."""
    del config, rng
    return {role: column.take(batch) for role, column in examples.columns.items()}


def is_negative(role: str) -> bool:
    """Whether a column or view holds hard negatives: `negative`, `negative_2` ..."""
    return role.startswith("negative")


def negatives(z: Encoded) -> Tensor:
    """(kN, D) vectors of all hard negatives, one kind after the other: row i of each N belongs to anchor i."""
    return torch.cat([vectors for role, vectors in z.items() if is_negative(role)])


# ------------------------------------------------------------ networks
def plain_encoder(config: EncoderConfig, source: LoadedEncoder, seed: int = 0) -> Network:
    """The encoder before training, pooled as configured, without a head."""
    del seed
    plain = replace(config, head="none", head_at="train_only", mlm_weight=0.0, dropout=0.0, lora_rank=0, freeze=None)
    return SentenceNetwork(plain, source, seed=0)


# ------------------------------------------------------------ the method
Prepare = Callable[[Texts, Any, int, TextTools], Examples]  # (texts, config, seed, tools)
MakeBatches = Callable[[Examples, Any, int], Iterator[Batch]]  # (examples, config, seed)
MakeViews = Callable[[Examples, Batch, Any, np.random.Generator], Views]
Loss = Callable[[Encoded, Any], Tensor]  # (vectors by role and numbers by name, config)
MakeNetwork = Callable[[Any, Any, int], Network]  # (config, source of weights or vectors, seed)
MakeOptimiser = Callable[[nn.Module, Any, int, int], tuple[Optimizer, LRScheduler]]  # (net, config, steps, steps/epoch)
WriteExport = Callable[[nn.Module, Any, Any, str, Path], None]  # (network, config, source, language, new folder)


@dataclass(frozen=True)
class Untrained:
    """What is scored before training.

    network: made like a method's network; reads: the configuration's fields (and "seed") that decide its vectors:
    trials that agree in them share the score.
    """

    network: MakeNetwork
    reads: tuple[str, ...]


PLAIN_ENCODER = Untrained(plain_encoder, reads=("pooling", "include_prompt", "bidirectional", "eval_max_length"))


@dataclass(frozen=True, kw_only=True)
class Method:
    """One training method (`contract.registry` has the table of them).

    Give both `loss` and `optimiser` or set both to None. None = nothing is trained: the network sees the vectors that
    `project` is given, and is evaluated at the same numbers of examples as if it were trained (whitening).

    Attributes:
        declaration: its torch-free part.
        prepare: `(texts, config, seed, tools) -> Examples`, once per trial.
        plan: `(examples, config, seed)` -> batches in training order.
        views: `(examples, batch, config, rng)` -> role -> token sequences.
        network: `(config, source, seed) -> Network`; source: the loaded encoder, or word vectors.
        loss: `(z, config)` -> () scalar; z has (N, D) vectors by role, of the batch over all workers, and
            `Examples.numbers` by name.
        optimiser: `(network, config, steps, steps_per_epoch)` -> (optimizer, scheduler).
        prepared_from: the configuration's fields that `prepare` reads, and "seed" if it does: trials that agree in them
            share their prepared examples. A test watches what `prepare` really reads.
        untrained: what is scored before training; None = a fresh `network`, scored anew in every trial.
        export: writes a trained network as a folder that other programs load (`declaration.usage` shows how); None = as
            SentenceTransformer, which takes a `SentenceNetwork`.
    """

    declaration: Declaration
    prepare: Prepare = tokenised_sentences
    plan: MakeBatches = shuffled_epochs
    views: MakeViews
    network: MakeNetwork = SentenceNetwork
    loss: Loss | None
    optimiser: MakeOptimiser | None = adamw
    prepared_from: tuple[str, ...] = ()
    untrained: Untrained | None = PLAIN_ENCODER
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
        assert issubclass(config, RunConfig), "every Declaration with a Method has one"
        return config


def loss_of(method: Method, z: Encoded, known: Mapping[str, Tensor], config: RunConfig) -> Tensor:
    """The method's loss of a batch, () scalar; with `matryoshka` its sum over the widths.

    Args: z: (N, D) vectors by role; known: numbers by name (`Batch.numbers_by_name`).
    """
    assert method.loss is not None, "nothing is trained"
    loss, widths = method.loss, config.matryoshka if isinstance(config, EncoderConfig) else None
    if not widths:
        return loss({**z, **known}, config)
    return matryoshka(lambda cut: loss({**cut, **known}, config), z, widths)


def load_method(name: str) -> Method:
    """The method of this name, its code imported.

    Raises: PluginError for an unknown name, or a method from outside that cannot be used.
    """
    found = method_object(name)
    if not isinstance(found, Method):
        raise PluginError(f"method {name!r}: expected a trainables.methods.method.Method, got {type(found).__name__}")
    return found
