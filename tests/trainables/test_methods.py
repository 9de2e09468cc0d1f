"""One contract over every method of the table, on the builtin data: whoever adds a method gets these tests for free."""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

import numpy as np
import pytest
import torch

from trainables.contract.config import build, hyperparameters
from trainables.contract.registry import declared, method_names
from trainables.contract.trial import TrialSpec
from trainables.methods.method import PLAIN_ENCODER, load_method, read_by
from trainables.training.checkpoint import TrialFiles
from trainables.training.method_trial import load_inputs
from trainables.training.trial import ProcessCache, run_trial

pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("narrow_projector")]

SMALL = {"batch_size": 8, "max_examples": 16, "eval_examples": 8, "precision": "fp32"}
SIZES = {"gclsr": {"filters": 4, "region_sizes": [1, 2], "max_words": 12}}
STEPS_OF = {"edacse": {"max_marks": 7}, "sda": {"augmentation": "ensemble"}}


def spec_of(method: str, folder: Any = "unused", language: str = "en", seed: int = 0, **params: Any) -> TrialSpec:
    return TrialSpec(
        method=method,
        encoder=declared(method).encoders.builtin,
        data={"train": "builtin", "dev": ["builtin"], "language": language, "parser": "builtin"},
        metric="builtin_dev",
        params={**SMALL, **SIZES.get(method, {}), **STEPS_OF.get(method, {}), **params},
        seed=seed,
        folder=str(folder),
    )


@pytest.fixture(scope="module")
def warm() -> ProcessCache:
    """One warm process for all trials of this module, as in a study."""
    return ProcessCache()


def session(spec, warm, decisions=()):
    """One session of a trial: (outcome, evaluations); `decisions` are given in order, then go."""
    seen, given = [], iter(decisions)

    def report(evaluation):
        seen.append(evaluation)
        return next(given, "go")

    return run_trial(spec, report, cache=warm), seen


@pytest.fixture(scope="module")
def whole(warm, tmp_path_factory):
    """A method's undisturbed trial of seed 5, made once: (outcome, evaluations, best weights)."""

    @functools.cache
    def trial(name):
        folder = tmp_path_factory.mktemp(name)
        outcome, seen = session(spec_of(name, folder, seed=5), warm)
        return outcome, seen, weights(folder)

    return trial


def weights(folder):
    return TrialFiles(str(folder)).load_best()[0]


@pytest.mark.parametrize("name", method_names())
def test_two_steps(name, whole):
    outcome, seen, _ = whole(name)
    assert outcome.stop == "completed", outcome.traceback
    assert [e.examples for e in seen] == [8, 16]
    for evaluation in seen:
        assert np.isfinite(list(evaluation.metrics.values())).all()
        assert -1 <= evaluation.value <= 1
    assert "untrained_builtin_dev" in seen[0].metrics


@pytest.mark.parametrize("name", method_names())
def test_same_seed_same_bits_other_seed_other_batches(name, warm, whole, tmp_path):
    for folder, seed in (("again", 5), ("other", 6)):
        session(spec_of(name, tmp_path / folder, seed=seed), warm)
    first, again, other = whole(name)[2], weights(tmp_path / "again"), weights(tmp_path / "other")
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)
    method, plans = load_method(name), []
    inputs = load_inputs(spec_of(name), torch.device("cpu"))
    config = build(method.config, spec_of(name).params)
    for seed in (5, 5, 6):
        examples = method.prepare(inputs.corpus.columns, config, seed, inputs.tools)
        plans.append(list(next(iter(method.plan(examples, config, seed)))))
    assert plans[0] == plans[1]
    if name != "selfccl":  # a curriculum: its order is the score's, whatever the seed
        assert plans[0] != plans[2]


@pytest.mark.parametrize("name", method_names())
def test_gradient_reaches_every_trained_weight(name):
    method = load_method(name)
    if method.loss is None:
        pytest.skip("it trains nothing")
    spec = spec_of(name, dropout=0.1) if "dropout" in hyperparameters(method.config) else spec_of(name)
    config = build(method.config, spec.params)
    inputs = load_inputs(spec, torch.device("cpu"))
    examples = method.prepare(inputs.corpus.columns, config, 0, inputs.tools)
    network: Any = method.network(config, inputs.source, 0)
    network.train()
    batch = next(iter(method.plan(examples, config, 0)))
    views = method.views(examples, batch, config, np.random.default_rng(0))
    pooled = network.encode(views)
    z = {**network.project(pooled), **batch.numbers_by_name(examples, torch.device("cpu"))}
    loss, own = method.loss(z, config), network.own_loss(views, pooled, np.random.default_rng(0))
    (loss if own is None else loss + own).backward()
    trained = [(n, p) for n, p in network.named_parameters() if p.requires_grad]
    without = [n for n, p in trained if p.grad is None or not p.grad.any()]
    # BERT's key biases shift all scores of a softmax alike, GCLSR's last biases vanish in the batch-norm after them.
    assert all(n.endswith("bias") for n in without), without
    assert len(without) < len(trained) / 2


@pytest.mark.parametrize("name", method_names())
def test_a_paused_trial_ends_as_an_undisturbed_one(name, warm, whole, tmp_path):
    paused, _ = session(spec_of(name, tmp_path, seed=5), warm, ["pause"])
    assert paused.stop == "paused"
    resumed, after = session(spec_of(name, tmp_path, seed=5), warm)
    assert resumed.stop == "completed"
    assert after[0].resumed_from == 8
    undisturbed, cut = whole(name)[2], weights(tmp_path)
    assert all(torch.equal(undisturbed[k], cut[k]) for k in undisturbed)


@pytest.mark.parametrize("name", method_names())
def test_prepare_reads_only_what_it_declares(name):
    """Trials that agree in `prepared_from` share their examples, so prepare must not read anything else."""
    method, read = load_method(name), set()

    class Watched:
        def __init__(self, config: object) -> None:
            object.__setattr__(self, "_config", config)

        def __getattr__(self, field: str) -> Any:
            read.add(field)
            return getattr(object.__getattribute__(self, "_config"), field)

    inputs = load_inputs(spec_of(name), torch.device("cpu"))
    config = build(method.config, spec_of(name).params)
    fresh = dataclasses.replace(inputs.tools)
    object.__setattr__(fresh, "embed", lambda column, _: inputs.tools.embed(column, config))
    if name == "selfccl":
        read |= set(PLAIN_ENCODER.reads)  # what embedding reads of the configuration
    method.prepare(inputs.corpus.columns, Watched(config), 0, fresh)
    assert read <= set(method.prepared_from), read - set(method.prepared_from)


def test_the_seed_drives_what_methods_draw_from_the_global_generators(tmp_path, monkeypatch):
    """Whatever the process ran before, and whether it holds the examples and the score before training already."""
    simcse, drawn = load_method("simcse"), []

    def draws(part, *args):
        drawn.append((part, random.random(), float(np.random.rand()), float(torch.rand(()))))
        return getattr(simcse, part)(*args)

    own = {part: functools.partial(draws, part) for part in ("prepare", "network", "views")}
    other, cache, sessions = dataclasses.replace(simcse, **own), ProcessCache(), []
    monkeypatch.setattr("trainables.training.method_trial.load_method", lambda _: other)
    for seed in (5, 5, 6, 5):
        outcome, _ = session(spec_of("simcse", tmp_path / str(len(sessions)), seed=seed), cache)
        assert outcome.stop == "completed", outcome.traceback
        sessions.append(drawn.copy())
        drawn.clear()
        if seed == 6:
            cache._objects.pop("examples")
    first, again, different, last = sessions
    assert [part for part, *_ in first] == ["prepare", "network", "views", "views"]
    assert first == last
    assert first[1:] == again
    assert not {*different} & {*first}


@pytest.mark.parametrize("name", [name for name in method_names() if name != "gclsr"])
def test_chinese(name, warm, tmp_path):
    outcome, _ = session(spec_of(name, tmp_path, language="zh"), warm)
    assert outcome.stop == "completed", outcome.traceback


def test_a_fault_is_an_outcome(warm, tmp_path):
    (tmp_path / "best").write_text("a file where the folder should be")
    outcome, seen = session(spec_of("simcse", tmp_path), warm)
    assert outcome.stop == "failed:error"
    assert outcome.best == max(e.value for e in seen)
    assert "Error" in outcome.reason
    assert "Traceback" in outcome.traceback


def test_nan_is_an_outcome(warm, tmp_path):
    outcome, _ = session(spec_of("simcse", tmp_path, learning_rate=1e30, max_grad_norm=0.0), warm)
    assert outcome.stop in ("failed:nan", "failed:collapse")


def test_missing_data_is_an_outcome(tmp_path):
    spec = dataclasses.replace(spec_of("simcse", tmp_path), encoder="/no/such/folder")
    outcome, _ = session(spec, ProcessCache())
    assert outcome.stop == "failed:data"
    assert "/no/such/folder" in outcome.reason


def test_a_file_of_ones_own_has_no_builtin_parses(tmp_path):
    (tmp_path / "mine.txt").write_text("A man is eating food.\nA woman reads.\n")
    spec = spec_of("sda", tmp_path / "trial")
    spec = dataclasses.replace(spec, data={**spec.data, "train": str(tmp_path / "mine.txt")})
    outcome, _ = session(spec, ProcessCache())
    assert outcome.stop == "failed:data"
    assert outcome.reason.startswith("parser 'builtin': has only the sentences of the builtin corpus, got 'A ")


def test_every_preset_builds():
    for method in map(declared, method_names()):
        for name, preset in method.presets.items():
            build(method.config, preset.values)
            assert set(preset.values) <= set(hyperparameters(method.config)), name


@pytest.mark.parametrize(
    ("method", "encoder", "preset"),
    [
        ("simcse", "bert-base-uncased", "simcse_unsup"),
        ("simcse", "FacebookAI/roberta-large", "simcse_unsup_roberta_large"),
        ("edacse", "hfl/chinese-roberta-wwm-ext-large", "edacse_roberta_large"),
        ("sda", "hfl/chinese-roberta-wwm-ext", "sda_chinese"),
        ("simcse", "./models/bert-base-uncased", "simcse_unsup"),
        ("simcse_sup", "bert-large-uncased@6da4b6a26a1877e173fca3225479512db81a5e5b", "simcse_sup_large"),
        ("simcse", "builtin:tiny", None),
        *(
            (method, encoder, None)  # no paper trained these
            for method in ("simcse", "simcse_sup", "edacse", "sda", "selfccl", "consert", "diffcse")
            for encoder in ("albert/albert-base-v2", "distilroberta-base", "microsoft/deberta-v3-large")
        ),
    ],
)
def test_preset_of_an_encoder(method, encoder, preset):
    assert declared(method).preset_for(encoder) == preset


def test_the_score_before_training_belongs_to_its_metric():
    """Two searches on the same dev sets that select by different metrics do not share it."""
    inputs, method = load_inputs(spec_of("simcse"), torch.device("cpu")), load_method("simcse")
    config = build(method.config, SMALL)
    first, again, other = (
        inputs.untrained(method, config, 0, metric, lambda _, v=value: v)
        for metric, value in (("a_dev", 0.1), ("a_dev", 0.2), ("mean(a_dev,b_dev)", 0.3))
    )
    assert (first, again, other) == (0.1, 0.1, 0.3)


def test_the_score_before_training_belongs_to_what_is_evaluated(tmp_path):
    """Prompts, other columns of one file and a held-out part change it, and so does what a decoder's tokens see."""
    rows = [(f"dog {i}", f"cat {i % 7}", i, -i) for i in range(40)]
    (tmp_path / "mine.csv").write_text(
        "sentence1,sentence2,score,other\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in rows)
    )
    plain = dataclasses.replace(spec_of("simcse"), metric="mine_dev")
    plain = dataclasses.replace(plain, data={**plain.data, "dev": [str(tmp_path / "mine.csv")]})
    specs = [
        plain,
        dataclasses.replace(plain, data={**plain.data, "prompts": {"query": "a "}}),
        dataclasses.replace(plain, data={**plain.data, "columns": {"score": "other"}}),
        dataclasses.replace(plain, holdout=0.5),
    ]
    method, values = load_method("simcse"), iter(range(100))
    config = build(method.config, SMALL)
    found = [
        load_inputs(spec, torch.device("cpu")).untrained(method, config, 0, "mine_dev", lambda _: float(next(values)))
        for spec in (*specs, plain)
    ]
    assert found == [0, 1, 2, 3, 0]
    decoder = build(method.config, {**SMALL, "bidirectional": True})
    assert read_by(config, 0, method.untrained.reads) != read_by(decoder, 0, method.untrained.reads)


def test_cached_vectors_belong_to_length_and_special_tokens():
    """Two folders may have the same weights, and another length or other tokens around a text."""
    inputs, config = load_inputs(spec_of("simcse"), torch.device("cpu")), build(load_method("simcse").config, {})
    column, source = inputs.tools.tokenise(["a man is eating a piece of bread"]), inputs.source
    shorter = dataclasses.replace(source, facts=dataclasses.replace(source.facts, trained_length=4))
    open_ended = dataclasses.replace(source, suffix=())
    first, *others = (
        dataclasses.replace(inputs.tools, source=one).embed(column, config) for one in (source, shorter, open_ended)
    )
    assert not any(np.allclose(first, other) for other in others)


def test_max_length_changes_nothing_before_training():
    """Evaluations cut no sentence at it: a search over it scores the untouched encoder once."""
    source, sentence = load_inputs(spec_of("simcse"), torch.device("cpu")).source, np.arange(10, 50, dtype=np.int32)
    for method in map(load_method, method_names()):
        if "max_length" in hyperparameters(method.config):
            configs = [build(method.config, {"max_length": length}) for length in (8, 32)]
            short, long = (method.untrained.network(config, source, 0).embed([sentence]) for config in configs)
            assert torch.equal(short, long)
            short, long = (read_by(config, 0, method.untrained.reads) for config in configs)
            assert short == long, method.name


def test_simcse_under_one_dropout_mask_has_equal_views(warm, tmp_path):
    """The loss is that of one encoding as anchor and as positive; with masks of their own the views differ."""
    method = load_method("simcse")
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = build(method.config, {"same_mask": True, "temperature": 0.5})
    two = build(method.config, {"temperature": 0.5})
    assert method.loss({"anchor": z}, one).item() == method.loss({"anchor": z, "positive": z}, two).item()
    outcome, seen = session(spec_of("simcse", tmp_path, same_mask=True, dropout=0.3), warm)
    assert (outcome.stop, outcome.examples) == ("completed", 16), outcome.traceback
    assert all(np.isfinite(list(e.metrics.values())).all() for e in seen)
