"""Trials that a method trains: data, encoder, network, dev evaluations, then the loop.

What trials on one encoder and one data set share is in `TrialInputs`: a warm process loads it once, and a further trial
costs its training. Tokens, parses and scores are in the disk cache too, where a second process or study finds them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.contract.config import EncoderConfig, RunConfig, build
from trainables.contract.declaration import TRANSFORMER, DevEvaluation
from trainables.contract.errors import DataError, PluginError
from trainables.contract.limits import cores
from trainables.contract.registry import declared, evaluation_named
from trainables.contract.trial import (
    DEV_SUFFIX,
    ROWS_LEFT_OUT,
    Outcome,
    Report,
    TrialSpec,
    at_width,
    metric_parts,
    phase,
)
from trainables.data.retrieval import Retrieval, is_retrieval, load_retrieval
from trainables.data.sets import Corpus, Pairs, held_out, load_corpus, load_pairs
from trainables.data.tokens import MAX_TOKENS, DiskCache, PromptSizes, TokenCache, Tokens, without_trailing_blanks
from trainables.encoders.load import (
    EncoderSource,
    LoadedEncoder,
    check_unknown,
    fingerprints,
    load_source,
    revision,
    token_ids,
)
from trainables.encoders.network import SentenceNetwork
from trainables.evaluation.metrics import NO_SPREAD, SMALLEST_NORM, selecting_value
from trainables.evaluation.scoring import PreparedSets, evaluate, prepare_sets
from trainables.methods.method import PLAIN_ENCODER, Examples, Method, TextTools, load_method, read_by
from trainables.methods.optimiser import adamw
from trainables.training.checkpoint import TrialFiles
from trainables.training.distributed import World, random_state, set_random_state
from trainables.training.loop import Training
from trainables.training.mining import with_mined
from trainables.training.trial import ProcessCache, seed_generators

log = logging.getLogger(__name__)

T = TypeVar("T")
IDS_AT_ONCE = 2**22
UNKNOWN_CHECKED = 2_000  # training texts in which unknown tokens are counted
Embed = Callable[[Sequence[Tokens]], Tensor]


def train_by_method(
    spec: TrialSpec, report: Report, world: World, cache: ProcessCache, pausing: Callable[[], bool]
) -> Outcome:
    """The runner (`trial.TrialRunner`) of every trial that a `Method` trains."""
    method = load_method(spec.method)
    config = build(method.config, spec.params)
    key = inputs_key(spec)
    inputs: TrialInputs = cache.get("inputs", key, lambda: load_inputs(spec, world.device))
    inputs.check_prompts(config)
    phase("preparing the examples")

    def make_examples() -> Prepared:
        seed_generators(spec.seed)
        return inputs.prepared(method, config, spec.seed)

    reads = (*method.prepared_from, *(PLAIN_ENCODER.reads if spec.data.get("mine") else ()))
    prepared = cache.get("examples", (key, repr(read_by(config, spec.seed, reads))), make_examples)
    examples = prepared.examples
    if config.sample_size is not None and config.sample_size > len(examples):
        log.warning("sample_size %d: there are %d examples, all of them are used", config.sample_size, len(examples))

    trained = (config.matryoshka or ()) if isinstance(config, EncoderConfig) else ()
    selecting = (at_width(part)[1] for part in metric_parts(spec.metric))
    widths = sorted({*trained, *(width for width in selecting if width)}, reverse=True)
    gold = {f"{pairs.name}_gold": pairs.gold.astype(np.float32) for pairs in inputs.sets.sets}

    def evaluated(embed: Embed) -> tuple[float, dict[str, float], dict[str, Any]]:
        result = evaluate(embed, inputs.sets, widths=widths)
        metrics = result.metrics | inputs.outside_scores(embed)
        return selecting_value(spec.metric, metrics), metrics, {**result.similarities, **gold}

    untrained = inputs.untrained(method, config, spec.seed, spec.metric, lambda embed: evaluated(embed)[0], world)
    facts = {**examples.facts, f"untrained_{spec.metric}": untrained}
    if inputs.corpus.left_out:
        facts[ROWS_LEFT_OUT] = float(inputs.corpus.left_out)
    seed_generators(spec.seed)  # after all that an earlier trial may have done already
    network = method.network(config, inputs.source, spec.seed)
    if method.optimiser is adamw:  # which leaves a row without gradient as it is
        for part in network.modules():
            if isinstance(part, SentenceNetwork):
                part.keep_words([prepared.tokens, *inputs.sets.sentences])
    training = Training(
        method=method, config=config, network=network, examples=replace(examples, facts=facts), evaluate=evaluated,
        seed=spec.seed, files=TrialFiles(spec.folder), mode=spec.mode, world=world, pausing=pausing,
        about={"spec": spec.to_dict(), **inputs.record},
    )  # fmt: skip
    if spec.measure:
        training.measure(cores())
    return training.run(report)


def inputs_key(spec: TrialSpec) -> Hashable:
    """Equal for trials that share their inputs."""
    data = json.dumps(spec.data, sort_keys=True, default=list)
    return (spec.method, spec.plugins, spec.encoder, spec.holdout, data, _further_texts(spec))


def _further_texts(spec: TrialSpec) -> bool:
    """Whether texts will be encoded that are not among the data: by evaluations from outside, or sentences that are
    made of others. The vectors of their words are needed, too."""
    return bool(spec.data.get("evaluations")) or spec.params.get("sentence_augmentation", "none") != "none"


def load_inputs(spec: TrialSpec, device: torch.device) -> TrialInputs:
    """Load what a trial needs.

    Raises: DataError, EncoderError or ValueError in one line for what is missing or of another kind.
    """
    declaration, data = declared(spec.method), spec.data
    language, columns = data["language"], data.get("columns")
    phase("reading the data")
    corpus = load_corpus(data["train"], language, declaration.rows(data), columns)
    pair_sets = (load_pairs(name, "dev", language, columns) for name in data["dev"] if not is_retrieval(name))
    dev = held_out(pair_sets, spec.holdout)
    retrieval = tuple(load_retrieval(name) for name in data["dev"] if is_retrieval(name))
    sides = [side for p in dev for side in (p.first, p.second)]
    sides += [side for r in retrieval for side in (r.documents, r.queries)]
    texts = itertools.chain(*corpus.columns.values(), *sides)
    phase("loading the encoder")
    words, prompts = None if _further_texts(spec) else texts, data.get("prompts")
    source = load_source(declaration.encoders, spec.encoder, language, words, prompts)
    fingerprint = fingerprints(source)[0]
    tools = text_tools(source, data, device)
    miner = (data.get("mine") or {}).get("encoder")
    miners = tools
    if miner:
        miners = text_tools(load_source(declaration.encoders, miner, language, None, prompts), data, device)
    evaluations = tuple(
        (evaluation_named(name), None if folder is None else Path(folder).expanduser())
        for name, folder in (data.get("evaluations") or {}).items()
    )
    sets = prepare_sets(dev, tools.tokenise, retrieval, tools.prompts)
    if isinstance(source, LoadedEncoder):
        some = tools.tokenise(next(iter(corpus.columns.values()))[:UNKNOWN_CHECKED])
        check_unknown(source, [*sets.sentences, *some.take(np.arange(len(some)))])
    return TrialInputs(source, corpus, dev, sets, tools, fingerprint, retrieval, evaluations, data.get("mine"), miners)


def text_tools(source: EncoderSource, data: Mapping[str, Any], device: torch.device) -> TextTools:
    """What prepares a trial's texts for this encoder."""
    most = max(MAX_TOKENS, source.facts.longest) if isinstance(source, LoadedEncoder) else MAX_TOKENS
    tokens = TokenCache(token_ids(source, data["language"]), fingerprints(source)[1], DiskCache(), most)
    prompts, language = data.get("prompts") or {}, data["language"]

    def another(name: str) -> TextTools:
        return text_tools(load_source(TRANSFORMER, name, language), data, device)

    return TextTools(language, data.get("parser"), source, tokens, device, prompts, tools_for=another)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A method's examples, and the (n,) ids of the tokens in their columns and in all that `prepare` tokenised."""

    examples: Examples
    tokens: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrialInputs:
    """Everything about a trial that its hyperparameters do not change."""

    source: EncoderSource
    corpus: Corpus
    dev: tuple[Pairs, ...]
    sets: PreparedSets
    tools: TextTools
    fingerprint: str  # of encoder or vectors
    retrieval: tuple[Retrieval, ...] = ()
    evaluations: tuple[tuple[DevEvaluation, Path | None], ...] = ()  # from outside, with the data the space gives them
    mine: Mapping[str, Any] | None = None  # `data.mine`
    miners: TextTools | None = None  # of the encoder that mines

    @property
    def record(self) -> dict[str, Any]:
        """What was read: data set -> revision or hash, the encoder's, and why batches are padded ("": packed)."""
        sets: tuple[Pairs | Retrieval, ...] = (*self.dev, *self.retrieval)
        revisions = {self.corpus.name: self.corpus.revision, **{f"{one.name}_dev": one.revision for one in sets}}
        note = self.source.packing_note if isinstance(self.source, LoadedEncoder) else ""
        return {"revisions": revisions, "encoder": revision(self.source), "packing_note": note}

    def check_prompts(self, config: RunConfig) -> None:
        """That training sees something of every text behind its prompt. Raises: DataError."""
        max_length = getattr(config, "max_length", None)  # whitening has it too, whose class is no EncoderConfig
        if not isinstance(self.source, LoadedEncoder) or max_length is None:
            return
        prompts = without_trailing_blanks(self.tools.prompts)
        counted = map(len, self.tools.tokens.encode(list(prompts.values())) if prompts else ())
        special = len(self.source.prefix) + len(self.source.suffix)
        sizes = PromptSizes(dict(zip(prompts, counted, strict=True)), special)
        if wrong := sizes.problems(max_length):
            raise DataError("; ".join(f"{key}: {message}" for key, message in wrong))
        for note in sizes.notes(max_length):
            log.warning(note)

    def prepared(self, method: Method, config: RunConfig, seed: int) -> Prepared:
        """What `method.prepare` makes of the training data."""
        tools, texts = replace(self.tools, seen=[]), self.corpus.columns
        sets = np.repeat(np.arange(len(self.corpus.sizes)), self.corpus.sizes)
        if self.mine is not None and self.miners is not None:
            texts, rows = with_mined(texts, self.mine, config, self.miners)
            sets = sets[rows] if len(sets) else sets
        examples = method.prepare(texts, config, seed, tools)
        if len(sets):
            examples = replace(examples, sets=sets)
        if isinstance(self.source, LoadedEncoder) and self.source.prompts:
            examples = replace(examples, prompt=self._prompt(method, examples))
        columns = [column.flat for column in (*(tools.seen or ()), *examples.columns.values())]
        return Prepared(examples, distinct(columns))

    def _prompt(self, method: Method, examples: Examples) -> int:
        """Tokens of the prompt of queries. Raises: PluginError if no example begins with a prompt."""
        assert isinstance(self.source, LoadedEncoder)
        begun = [tuple(column[0].tolist()) for column in examples.columns.values()]
        if not any(one[: len(ids)] == ids for one in begun for ids in self.source.prompts):
            raise PluginError(
                f"method {method.name}: its prepare puts no prompt of data.prompts before its sentences; "
                'tools.tokenise(texts, "query") does'
            )
        query = without_trailing_blanks(self.tools.prompts).get("query")
        return len(next(iter(self.tools.tokens.encode([query])))) if query else 0

    def outside_scores(self, embed: Embed) -> dict[str, float]:
        """Scores of the evaluations from outside, by metric name; NaN only of vectors that are NaN or all the same.

        What they draw moves no generator of the training. Raises: PluginError if one returns other than it declares.
        """
        broken = False  # whether any vectors were NaN or all the same

        def embed_texts(texts: Sequence[str]) -> NDArray[np.float32]:
            nonlocal broken
            column = self.tools.tokenise(list(texts) or [""], "query")  # the width is known also of no texts
            vectors: NDArray[np.float32] = embed(column.take(np.arange(len(column)))).float().cpu().numpy()
            vectors = vectors[: len(texts)]
            broken = broken or collapsed(vectors)
            return vectors

        scores: dict[str, float] = {}
        for evaluation, folder in self.evaluations:
            with preserved_generators(self.tools.device):
                found = evaluation.evaluate(embed_texts, folder)
            for metric, value in checked(evaluation, found).items():
                if not (broken or math.isfinite(value)):
                    raise PluginError(f"evaluation {evaluation.name}: {metric}: expected a finite number, got {value}")
                scores[metric + DEV_SUFFIX] = value
        return scores

    def untrained(
        self,
        method: Method,
        config: RunConfig,
        seed: int,
        metric: str,
        value: Callable[[Embed], float],
        world: World | None = None,
    ) -> float:
        """The selecting metric (`metric` its name, `value` what computes it) of the method's untrained network."""

        def scored(make: Callable[[Any, Any, int], Any], value: Callable[[Embed], float] = value) -> float:
            network = functools.cache(lambda: make(config, self.source, seed).to(self.tools.device))
            return (world or World()).by_one(value, lambda sequences: network().embed(sequences))

        phase("evaluating the untrained encoder")
        if (untrained := method.untrained) is None:
            return scored(method.network)
        what: list[object] = [self.fingerprint, self.tools.tokens.fingerprint, metric, self.tools.prompts]
        # the pairs themselves: one file read by other columns, or with another part held out, has the same revision
        what += [[pairs.name, pairs.first, pairs.second, pairs.gold] for pairs in self.dev]
        what += [[one.name, one.revision] for one in self.retrieval]
        if self.evaluations:  # their code and data have no fingerprint: nothing of theirs is cached
            return scored(untrained.network)
        if isinstance(self.source, LoadedEncoder):
            what += [self.source.facts.evaluated_length]
        what += [f"{untrained.network.__module__}.{untrained.network.__qualname__}"]
        what += [read_by(config, seed, untrained.reads)]
        return scored(
            untrained.network, lambda embed: self.tools.cached("untrained", what, functools.partial(value, embed))
        )


@contextlib.contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Whatever is drawn or seeded inside, the generators have the same state afterwards."""
    torch_state, numpy_state, python_state = random_state(device), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        set_random_state(torch_state, device)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def collapsed(vectors: NDArray[np.float32]) -> bool:
    """Whether (n, D) vectors are no numbers, or several that all point the same way."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SMALLEST_NORM)
    return not np.isfinite(unit).all() or (len(unit) > 1 and float(np.ptp(unit, axis=0).max()) < NO_SPREAD)


def checked(evaluation: DevEvaluation, found: object) -> dict[str, float]:
    """What an evaluation returned, as numbers. Raises: PluginError where it is no mapping of its metrics to numbers."""
    place = f"evaluation {evaluation.name}"
    if not isinstance(found, Mapping) or set(found) != set(evaluation.metrics):
        given = ", ".join(map(str, found)) or "none" if isinstance(found, Mapping) else type(found).__name__
        raise PluginError(f"{place}: expected values of {', '.join(evaluation.metrics)}, got {given}")
    numbers: dict[str, float] = {}
    for metric, value in found.items():
        try:
            numbers[metric] = float(value)
        except (TypeError, ValueError):
            raise PluginError(f"{place}: {metric}: expected a finite number, got {value!r}") from None
    return numbers


def distinct(columns: Iterable[NDArray[np.int32]]) -> NDArray[np.int64]:
    """The (n,) different ids >= 0, rising; of columns that may be larger than memory."""
    found = np.zeros(1, bool)
    for flat in columns:
        for start in range(0, len(flat), IDS_AT_ONCE):
            part = flat[start : start + IDS_AT_ONCE]
            part = part[part >= 0]
            if (top := int(part.max(initial=0))) >= len(found):
                found = np.pad(found, (0, top + 1 - len(found)))
            found[part] = True
    return np.flatnonzero(found)
