"""An evaluation from outside: checked, selected by, tracked; sentence-transformers' evaluators as one."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from from_outside import EVALUATION, EXAMPLES, errors, trained

from search.space import SpaceError, load_space, smoke
from trainables.contract.declaration import DevEvaluation
from trainables.contract.errors import PluginError
from trainables.training.inputs import TrialInputs

pytestmark = pytest.mark.costly


def test_an_evaluation_from_outside_selects(outside):
    (outside / "lengths.py").write_text(EVALUATION)
    (outside / "number.txt").write_text("0.25")
    path = outside / "dcl.yaml"
    text = path.read_text().replace("[dcl.py]", "[dcl.py, lengths.py]")
    text = text.replace("builtin_dev", "'mean(spread_dev,given_dev)'")
    path.write_text(text.replace("dev: [builtin]}", f"dev: [builtin], evaluations: {{lengths: {outside}}}}}"))
    space = load_space(path)
    assert space.metric.name == "mean(spread_dev,given_dev)"
    assert smoke(space).metric.name == space.metric.name
    outcome, seen = trained(space, outside / "trial")
    assert outcome.stop == "completed", outcome.traceback
    metrics = seen[-1].metrics
    assert {"builtin_dev", "spread_dev", "given_dev"} <= metrics.keys()
    assert metrics["given_dev"] == 0.25
    assert seen[-1].value == pytest.approx((metrics["spread_dev"] + 0.25) / 2)
    assert "untrained_mean(spread_dev,given_dev)" in seen[0].metrics


def test_evaluators_of_sentence_transformers_select(outside):
    """The example's stand-in gives every evaluator what the model itself would give it, and its values are tracked."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers import evaluation as st
    from toy_encoders import save

    shutil.copy(EXAMPLES / "st_evaluator.py", outside)
    rows = [("the cat runs", "a cat runs", "green bird"), ("a dog sleeps", "the dog sleeps on the mat", "red mat"),
            ("blue bird", "the blue bird runs", "a dog")]  # fmt: skip
    (outside / "triplets.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    path = outside / "dcl.yaml"
    text = path.read_text().replace("[dcl.py]", "[dcl.py, st_evaluator.py]").replace("builtin_dev", "triplets_dev")
    path.write_text(text.replace("dev: [builtin]}", f"dev: [builtin], evaluations: {{triplets: {outside}}}}}"))
    outcome, seen = trained(load_space(path), outside / "trial")
    assert outcome.stop == "completed", outcome.traceback
    assert seen[-1].value == seen[-1].metrics["triplets_dev"]
    assert 3 * seen[-1].value == pytest.approx(round(3 * seen[-1].value), abs=1e-5)  # three triplets

    encoded: Any = {}
    exec((outside / "st_evaluator.py").read_text(), encoded)
    model = sentence_transformers.SentenceTransformer(str(save("bert", outside / "model")), device="cpu")
    ours = encoded["Encoded"](lambda texts: model.encode(texts))
    first, second, third = (list(column) for column in zip(*rows, strict=True))
    corpus = {str(i): text for i, text in enumerate(second + third)}
    for evaluator in (
        st.TripletEvaluator(first, second, third),
        st.EmbeddingSimilarityEvaluator(first + first, second + third, [1.0, 0.9, 0.8, 0.1, 0.3, 0.2]),
        st.BinaryClassificationEvaluator(first + first, second + third, [1, 1, 1, 0, 0, 0]),
        st.InformationRetrievalEvaluator({"q": first[0]}, corpus, {"q": {"0"}}),
    ):
        theirs = evaluator(model)
        assert evaluator(ours) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("evaluations: {length: null}", "data.evaluations: unknown evaluation 'length'; did you mean 'lengths'?"),
        ("evaluations: 3", "data.evaluations: expected names, or a mapping of name to a folder or null"),
        ("evaluations: [lengths]", ""),
    ],
)
def test_mistakes_about_evaluations(outside, data, message):
    (outside / "lengths.py").write_text(EVALUATION)
    path = outside / "dcl.yaml"
    text = path.read_text().replace("[dcl.py]", "[dcl.py, lengths.py]")
    path.write_text(text.replace("dev: [builtin]}", f"dev: [builtin], {data}}}"))
    if message:
        assert any(message in line for line in errors(path))
    else:
        assert load_space(path).data.evaluations == {"lengths": None}


@pytest.mark.parametrize(
    ("metric", "more", "message"),
    [
        ("builtin", "", "6: data.evaluations: lengths: builtin_dev is already measured by data.dev"),
        ("best_builtin", "",
         "6: data.evaluations: lengths: best_builtin_dev is what is tracked of builtin_dev; rename it"),
        ("best_spread", "",
         "6: data.evaluations: lengths: best_spread_dev is what is tracked of spread_dev; rename it"),
        ("builtin_held", ", holdout: 0.2",
         "7: metric.holdout: builtin_held_dev of the held-out part is already measured by data.evaluations"),
        ("builtin_held", "", ""),
        ("loss", "", ""),
    ],
)  # fmt: skip
def test_no_evaluation_takes_the_name_of_what_is_measured(outside, metric, more, message):
    """It would select in its place, and be called a Spearman correlation. Studies of before this was looked at are
    read all the same."""
    (outside / "lengths.py").write_text(EVALUATION.replace('"given"', f'"{metric}"'))
    path = outside / "dcl.yaml"
    text = path.read_text().replace("[dcl.py]", "[dcl.py, lengths.py]").replace("builtin_dev}", f"builtin_dev{more}}}")
    path.write_text(text.replace("dev: [builtin]}", "dev: [builtin], evaluations: [lengths]}"))
    assert load_space(path).data.evaluations == {"lengths": None}
    if message:
        assert errors(path, find_data=True) == [f"{path}:{message}"]
    else:
        load_space(path, find_data=True)


def test_no_evaluation_takes_the_name_of_a_smoke_run_s_set(outside):
    (outside / "lengths.py").write_text(EVALUATION.replace('"given"', '"builtin"'))
    path = outside / "dcl.yaml"
    text = path.read_text().replace("[dcl.py]", "[dcl.py, lengths.py]").replace("builtin_dev", "stsb_dev")
    path.write_text(text.replace("dev: [builtin]}", "dev: [stsb], evaluations: [lengths]}"))
    with pytest.raises(SpaceError, match="lengths: builtin_dev is already measured"):
        smoke(load_space(path))


def scored(evaluate: Callable[..., Any], vectors: object = ((1, 0), (0, 1))) -> dict[str, float]:
    """What a trial gets of an evaluation of `topics`, where these are the vectors of all texts."""
    tools: Any = SimpleNamespace(device=torch.device("cpu"), tokenise=lambda texts, prompt: np.array(texts))  # noqa: ARG005  # its interface
    evaluation = DevEvaluation(name="mine", metrics=("topics",), evaluate=evaluate)
    nothing: Any = None
    inputs = TrialInputs(nothing, nothing, (), nothing, tools, "", evaluations=((evaluation, None),))
    return inputs.outside_scores(lambda _: torch.tensor(vectors, dtype=torch.float32))


def test_an_evaluation_may_embed_no_text():
    widths = []

    def measures(embed, _):
        widths.append(embed([]).shape)
        return {"topics": float(np.ptp(embed(["a", "b"])))}

    assert scored(measures) == {"topics_dev": 1.0}
    assert widths == [(0, 2)]


def test_what_an_evaluation_draws_moves_no_training():
    def draws(*_):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        return {"topics": 0.5}

    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = drawn()
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    assert scored(draws) == {"topics_dev": 0.5}
    assert drawn() == expected


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "evaluation mine: expected values of topics, got NoneType"),
        (0.5, "evaluation mine: expected values of topics, got float"),
        ({}, "evaluation mine: expected values of topics, got none"),
        ({"topics": 0.5, 3: 1}, "evaluation mine: expected values of topics, got topics, 3"),
        ({"topics": None}, "evaluation mine: topics: expected a finite number, got None"),
        ({"topics": math.nan}, "evaluation mine: topics: expected a finite number, got nan"),
        ({"topics": math.inf}, "evaluation mine: topics: expected a finite number, got inf"),
    ],
)
def test_an_evaluation_that_gives_no_numbers_is_told_so(given, told):
    """NaN was called a collapse of the vectors."""
    with pytest.raises(PluginError) as caught:
        scored(lambda *_: given)
    assert str(caught.value) == told


@pytest.mark.parametrize("vectors", [((1, 1), (2, 2)), ((math.nan, 1), (0, 1)), ((0, 0), (0, 0))])
def test_of_collapsed_vectors_nothing_can_be_measured(vectors):
    """The training says so, which knows how far it was."""

    def measures(embed, _):
        embed(["a", "b"])
        return {"topics": math.nan}

    assert math.isnan(scored(measures, vectors)["topics_dev"])
    assert scored(lambda embed, _: {"topics": torch.tensor(len(embed(["a", "b"])))}) == {"topics_dev": 2.0}
