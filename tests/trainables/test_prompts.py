"""Prompts of every method on an encoder: before each text it trains on, untouched by augmentation, averaged or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_methods import session, spec_of, weights

from trainables.contract.config import build, hyperparameters
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.errors import PluginError
from trainables.contract.registry import declared, method_names
from trainables.methods.method import Batch, load_method
from trainables.training.method_trial import load_inputs
from trainables.training.trial import ProcessCache

OF_ENCODERS = [name for name in method_names() if declared(name).encoders == TRANSFORMER]
PROMPTS = {"query": "the man: ", "document": "some words: "}
AUGMENTING = {
    "edacse": [{}, {"alphabet": "english_extended"}],
    "consert": [{"first_view": "shuffle", "second_view": "shuffle"}],
    "esimcse": [{"repetition": 0.9}],
    "sda": [{"augmentation": "repeat"}, {"augmentation": "crop_30", "augmentation_share": 0.5}],
}
CASES = [(name, params) for name in OF_ENCODERS for params in AUGMENTING.get(name, [{}])]


def prompted(name: str, folder: Any = "unused", **params: Any) -> Any:
    spec = spec_of(name, folder, seed=3, **params)
    return replace(spec, data={**spec.data, "prompts": PROMPTS})


@pytest.mark.costly
@pytest.mark.parametrize(("name", "params"), CASES)
def test_every_view_begins_with_the_prompt_of_its_role(name: str, params: dict[str, Any]) -> None:
    spec = prompted(name, **params)
    inputs, method = load_inputs(spec, torch.device("cpu")), load_method(name)
    config = build(method.config, spec.params)
    examples = inputs.prepared(method, config, spec.seed).examples
    ids = {kind: inputs.tools.tokenise([PROMPTS[kind]])[0].tolist() for kind in PROMPTS}
    seen = 0
    for start in (0, 40):
        batch = Batch(np.arange(start, start + 40))
        for role, rows in method.views(examples, batch, config, np.random.default_rng(0)).items():
            kind = "document" if name in DOCUMENTS and role != "anchor" else "query"
            for tokens in rows:
                assert tokens[: len(ids[kind])].tolist() == ids[kind], (role, tokens)
                seen += len(tokens) > len(ids[kind])
    assert seen > 70  # behind the prompts are texts


DOCUMENTS = ("pairs", "simcse_sup", "selfccl")


def test_every_method_on_an_encoder_takes_prompts() -> None:
    assert {name for name in method_names() if declared(name).prompts} == set(OF_ENCODERS)
    assert all("include_prompt" in hyperparameters(declared(name).config) for name in OF_ENCODERS)


def test_a_prepare_without_prompts_is_reported() -> None:
    inputs, method = load_inputs(prompted("simcse"), torch.device("cpu")), load_method("simcse")

    def bare(texts: Any, config: Any, seed: int, tools: Any) -> Any:
        examples = method.prepare(texts, config, seed, tools)
        return replace(examples, columns={"sentence": tools.tokenise(texts["sentence"])})

    with pytest.raises(PluginError, match=r"^method simcse: its prepare puts no prompt of data.prompts before"):
        inputs.prepared(replace(method, prepare=bare), build(method.config, {}), 0)


@pytest.mark.parametrize("pooling", ["avg", "avg_first_last"])
def test_the_mean_leaves_out_what_stands_before_the_text(pooling: str) -> None:
    """Against a mean over the library's own states, in a batch of several prompts and lengths."""
    inputs, method = load_inputs(prompted("simcse"), torch.device("cpu")), load_method("simcse")
    config = build(method.config, {"pooling": pooling, "include_prompt": False, "head": "none", "dropout": 0.0})
    network: Any = method.network(config, inputs.source, 0)
    texts = {"query": ["a dog", "", "a red house on the hill"], "document": ["a cat runs"]}
    given = [PROMPTS[kind] + text for kind in texts for text in texts[kind]] + ["a dog without any prompt"]
    column = inputs.tools.tokenise(given)
    found = network.embed(column.take(range(len(given))))
    tokenizer, model = inputs.source.tokenizer, network.encoder.eval()
    for text, vector in zip(given, found, strict=True):
        kind = next((kind for kind in PROMPTS if text.startswith(PROMPTS[kind])), None)
        start = len(tokenizer(PROMPTS[kind])["input_ids"]) - 1 if kind else 0
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        layers = [states[-1]] if pooling == "avg" else [states[1], states[-1]]
        expected = torch.stack(layers).mean(0)[0, start:].mean(0)
        torch.testing.assert_close(vector, expected, atol=1e-5, rtol=0)
    included: Any = method.network(replace(config, include_prompt=True), inputs.source, 0)
    assert (included.embed(column.take(range(2))) - found[:2]).abs().max() > 0.01


@pytest.mark.costly
@pytest.mark.usefixtures("narrow_projector")
@pytest.mark.parametrize("name", ["simcse", "edacse", "whitening"])
def test_prompts_left_out_of_the_mean_are_trained_and_resumed(name: str, tmp_path: Path) -> None:
    warm, params = ProcessCache(), {"pooling": "avg", "include_prompt": False}
    whole = session(prompted(name, tmp_path / "whole", **params), warm)[0]
    assert whole.stop == "completed", whole.traceback
    session(prompted(name, tmp_path / "cut", **params), warm, ["pause"])
    session(prompted(name, tmp_path / "cut", **params), warm)
    other = session(prompted(name, tmp_path / "with", **{**params, "include_prompt": True}), warm)[0]
    first, second, third = (weights(tmp_path / folder) for folder in ("whole", "cut", "with"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], third[key]) for key in first)
    assert other.best != whole.best
