"""The benchmark of whole searches, without one: its settings, what it counts, its ratios."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertTokenizerFast

from benchmarks import peer
from benchmarks.peer import counted, our_operations, row, rows, search_operations
from benchmarks.peer_settings import BATCH, EVALUATIONS, LONG, MAX_LENGTH, SETTINGS, SHORT, Setting, wanted
from benchmarks.peer_sides import count
from search.space import load_space

WIDTH, INNER, LAYERS = 4, 8, 2
CONFIG = BertConfig(
    vocab_size=9, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=INNER
)


def forward(lengths: Sequence[int]) -> int:
    """Operations of encoding sentences, a multiply and an add being two, in plain loops."""
    found = 0
    for n in lengths:
        linear = n * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)  # query, key, value, out; the MLP
        attention = 2 * n * n * WIDTH  # every token with every token; the weighted sums
        found += LAYERS * 2 * (linear + attention)
    return found


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_our_space_is_the_training_that_the_peer_has(setting: Setting, tmp_path: Path) -> None:
    """Beside what both are given: dropout, decay, warm-up and clipping are the defaults of the peer's libraries."""
    file = tmp_path / "peer.yaml"
    file.write_text(setting.space(tmp_path / "encoder", tmp_path / "texts.txt", 3, "none", 1))
    space = load_space(file)
    points = list(space.points())
    assert [point["learning_rate"] for point in points] == list(setting.rates)
    assert (space.search.seed, space.search.repeats, space.pruner.kind) == (3, 1, "none")
    alike = {
        "batch_size": BATCH, "temperature": 0.05, "max_length": MAX_LENGTH, "pooling": "avg", "head": "none",
        "dropout": 0.1, "weight_decay": 0.0, "lr_decay": "linear", "warmup_share": 0.0, "max_grad_norm": 1.0,
        "epochs": 1, "max_examples": setting.examples, "precision": setting.ours,
    }  # fmt: skip
    values = space.values(points[0])
    assert {name: values[name] for name in alike} == alike
    assert values["eval_examples"] * EVALUATIONS == setting.steps * BATCH == setting.examples
    if setting.method == "simcse_sup":
        assert (values["loss_form"], values["hard_negative_weight"]) == ("hard", 0.0)


def test_settings_take_one_precision_and_all_steps_but_for_the_first() -> None:
    auto, *others = SETTINGS
    assert (auto.name, auto.prunes, auto.ours, auto.peer) == ("auto", True, "auto", "fp32")
    assert all(s.ours == s.peer and not s.prunes for s in others)
    assert {s.texts for s in others} == {"mixed", "short", "long", "triplets"}


def test_the_variable_narrows() -> None:
    assert wanted("") == list(SETTINGS)
    (found,) = wanted("settings=fp32 short;examples=512;rates=2")
    assert (found.name, found.texts, found.examples, found.rates) == ("fp32 short", "short", 512, (2e-5, 5e-5))
    with pytest.raises(SystemExit, match=r"expected some of auto, fp32, bf16, .*, got 'fp16'"):
        wanted("settings=fp32+fp16")
    with pytest.raises(SystemExit, match="expected a multiple of 256, got 500"):
        wanted("examples=500")


@pytest.mark.real_data
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_both_sides_read_as_many_distinct_examples_as_said(setting: Setting, real_data: Path, tmp_path: Path) -> None:
    del real_data  # skips without data
    path = setting.write(tmp_path)
    examples = setting.read(path)
    assert len(set(examples)) == len(examples) == setting.examples
    assert {len(example) for example in examples} == {setting.columns}
    words = [len(example[0].split()) for example in examples]
    assert setting.texts != "short" or max(words) <= SHORT
    assert setting.texts != "long" or min(words) >= LONG
    if setting.texts == "triplets":
        assert path.read_text(encoding="utf-8").splitlines()[0] == "anchor\tpositive\tnegative"
        assert all(len(set(example)) == 3 for example in examples[:100])


@pytest.mark.parametrize("texts", ["mixed", "triplets"])
def test_operations_of_padded_batches_are_those_counted_by_hand(texts: str) -> None:
    """A batch of each text of an example, padded to its longest; evaluations in batches of their own."""
    setting = Setting("one", "fp32", "fp32", texts)
    seen: dict[str, Counter[int]] = {"trained": Counter(), "evaluated": Counter()}
    steps = [(7, 5, 9), (6, 8, 4)]  # longest sentence in the batch of each column
    for step in steps:
        for longest in step[: setting.columns]:
            count(seen["trained"], {"input_ids": torch.zeros(BATCH, longest)})
    count(seen["evaluated"], {"input_ids": torch.zeros(3, 12)})
    trained = sum(forward([longest] * BATCH) for step in steps for longest in step[: setting.columns])
    similarities = len(steps) * 2 * BATCH * ((setting.columns - 1) * BATCH) * WIDTH
    written = {kind: {str(length): n for length, n in lengths.items()} for kind, lengths in seen.items()}
    result = counted(CONFIG, setting, {"seconds": 2.0, "best": 0.5, **written})
    assert result["operations"] == pytest.approx(3 * (trained + similarities) + forward([12] * 3), rel=1e-12)
    assert result["steps"] == len(steps)


def test_operations_of_packed_batches_are_those_of_their_tokens() -> None:
    trained, evaluated = [5, 9, 7, 9] * (BATCH // 2), [4, 30]
    found = search_operations(CONFIG, 2, np.array(trained), np.array(evaluated))
    by_hand = 3 * (forward(trained) + 2 * BATCH * BATCH * WIDTH) + forward(evaluated)
    assert found == pytest.approx(by_hand, rel=1e-12)
    padded = search_operations(CONFIG, 2, np.full(len(trained), 9), np.full(2, 30))
    assert padded > found


def test_ours_encodes_every_example_once_a_trial_and_every_distinct_sentence_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]) + "\n")
    CONFIG.save_pretrained(tmp_path)
    BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(tmp_path)
    monkeypatch.setattr(peer, "dev_pairs", lambda: [["a b", "a", "5"], ["b", "a b", "0"], ["b " * 50, "a", "1"]])
    setting = Setting("one", "fp32", "fp32", rates=(1e-5, 1e-4, 1e-3), examples=4 * BATCH)
    texts = tmp_path / "texts.txt"
    texts.write_text("".join("a " * n + "\n" for n in [1, 2, 3, 60] * BATCH))
    trained = [3, 4, 5, MAX_LENGTH] * BATCH * 2
    evaluated = [4, 3, 3, 52]  # "a b", "a", "b", and the long one whole
    trial = 3 * (forward(trained) + 4 * 2 * BATCH * BATCH * WIDTH) + EVALUATIONS * forward(evaluated)
    assert our_operations(CONFIG, setting, tmp_path, texts) == pytest.approx(3 * trial, rel=1e-12)


def races() -> list[dict[str, dict[str, Any]]]:
    theirs, ours, reached = (100.0, 200.0, 400.0), (50.0, 60.0, 160.0), (20.0, math.inf, math.inf)
    return [
        {
            "peer": {"seconds": a, "best": 0.7, "steps": 900.0, "share": 0.2, "rate": 1e11},
            "ours": {"seconds": b, "best": 0.8, "share": 0.4, "rate": 5e11, "reached": math.inf},
            "pruned": {"seconds": b, "best": 0.8, "reached": c},
        }
        for a, b, c in zip(theirs, ours, reached, strict=True)
    ]


def test_ratios_are_run_by_run() -> None:
    found = row("one", races(), "ours", "seconds")
    assert (found["ratio"], found["least"], found["most"]) == (0.4, 0.3, 0.5)  # of medians: 60 / 200
    assert (found["peer s"], found["ours s"], found["reached"]) == (200.0, 60.0, "3 of 3")
    never = row("one", races(), "pruned", "reached")
    assert (never["ratio"], never["least"], never["most"], never["ours s"]) == (None, 0.2, None, None)
    assert (never["reached"], never["ours share"], never["peer share"]) == ("1 of 3", None, 0.2)


def test_every_row_has_the_same_columns() -> None:
    auto = rows(SETTINGS[0], "bf16", races())
    only = rows(SETTINGS[1], "bf16", [{"peer": race["peer"], "ours": race["ours"]} for race in races()])
    assert len(auto) == 3
    assert len(only) == 1
    assert {tuple(each) for each in auto + only} == {tuple(only[0])}
    assert (auto[0]["precision"], only[0]["precision"]) == ("fp32, bf16", "fp32, fp32")
    assert auto[0]["peer steps"] == "900 of 1024"
    assert auto[0]["matmul Gflop/s"] == "100, 500"
