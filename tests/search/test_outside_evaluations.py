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
from from_outside import EVALUATION, EXAMPLES, changed_space, errors, trained

from search.space import SpaceError, load_space, smoke
from trainables.contract.declaration import DevEvaluation
from trainables.contract.errors import PluginError
from trainables.training.method_trial import TrialInputs

pytestmark = pytest.mark.costly


def test_an_evaluation_from_outside_selects(outside):
    (outside / "number.txt").write_text("0.25")
    metric = ("builtin_dev", "'mean(spread_dev,given_dev)'")
    data = ("dev: [builtin]}", f"dev: [builtin], evaluations: {{lengths: {outside}}}}}")
    space = load_space(changed_space(outside, metric, data))
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
    path = changed_space(outside, ("dev: [builtin]}", f"dev: [builtin], {data}}}"))
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
def test_an_evaluation_with_a_taken_name_is_refused(outside, metric, more, message):
    """It would select in its place, and be called a Spearman correlation. Stored studies are read all the same."""
    changes = ("builtin_dev}", f"builtin_dev{more}}}"), ("dev: [builtin]}", "dev: [builtin], evaluations: [lengths]}")
    path = changed_space(outside, *changes, evaluation=EVALUATION.replace('"given"', f'"{metric}"'))
    assert load_space(path).data.evaluations == {"lengths": None}
    if message:
        assert errors(path, find_data=True) == [f"{path}:{message}"]
    else:
        load_space(path, find_data=True)


def test_a_name_taken_in_the_smoke_run_is_refused(outside):
    changes = ("builtin_dev", "stsb_dev"), ("dev: [builtin]}", "dev: [stsb], evaluations: [lengths]}")
    path = changed_space(outside, *changes, evaluation=EVALUATION.replace('"given"', '"builtin"'))
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


def test_an_evaluation_s_random_draws_change_no_training():
    def draws(*_):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        return {"topics": 0.5}

    def drawn(before: Callable[[], object]) -> tuple[float, float, float]:
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)
        before()
        return float(torch.rand(())), float(np.random.rand()), random.random()

    assert drawn(lambda: scored(draws)) == drawn(lambda: None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "expected values of topics, got NoneType"),
        (0.5, "expected values of topics, got float"),
        ({}, "expected values of topics, got none"),
        ({"topics": 0.5, 3: 1}, "expected values of topics, got topics, 3"),
        ({"topics": None}, "topics: expected a finite number, got None"),
        ({"topics": math.nan}, "topics: expected a finite number, got nan"),
        ({"topics": math.inf}, "topics: expected a finite number, got inf"),
    ],
)
def test_an_evaluation_without_numbers_is_an_error(given, message):
    with pytest.raises(PluginError) as caught:
        scored(lambda *_: given)
    assert str(caught.value) == f"evaluation mine: {message}"


@pytest.mark.parametrize("vectors", [((1, 1), (2, 2)), ((math.nan, 1), (0, 1)), ((0, 0), (0, 0))])
def test_collapsed_vectors_give_nan(vectors):
    def measures(embed, _):
        embed(["a", "b"])
        return {"topics": math.nan}

    assert math.isnan(scored(measures, vectors)["topics_dev"])
    assert scored(lambda embed, _: {"topics": torch.tensor(len(embed(["a", "b"])))}) == {"topics_dev": 2.0}
