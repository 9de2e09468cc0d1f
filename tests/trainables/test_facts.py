"""What is searched is what is trained: dropout, pooling, the MLM head and lengths are measured per encoder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_families import folder_of, tiny
from torch import nn

from search.space import check_spaces
from trainables.contract.errors import EncoderError
from trainables.contract.trial import TrialSpec
from trainables.encoders import probe as probing
from trainables.encoders.facts import available_facts, facts_key, left_out, restored, stored, trained_length, unfit
from trainables.encoders.load import load_encoder, make_model
from trainables.encoders.load import main as print_facts
from trainables.encoders.network import SentenceNetwork, pretrained_pooler
from trainables.encoders.probe import DropoutCounter, probe, set_dropout
from trainables.encoders.tokenizing import Template
from trainables.methods.simcse.config import SimcseConfig
from trainables.training.trial import run_trial

SENTENCES = [np.arange(5, 5 + n, dtype=np.int32) for n in (3, 7, 5, 4)]


def network(model_type: str, **params: Any) -> SentenceNetwork:
    return SentenceNetwork(SimcseConfig(**{"max_length": 16, "head": "none", **params}), tiny(model_type), seed=0)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_builtin_facts_are_what_is_measured(language: str) -> None:
    assert available_facts("builtin:tiny") == load_encoder("builtin:tiny", language=language).facts


@pytest.mark.parametrize("model_type", ["modernbert", "nomic_bert", "eurobert", "jina_embeddings_v3", "llama", "qwen3"])
def test_dropout_reaches_where_the_family_keeps_it(model_type: str) -> None:
    """These copy p into float attributes when they are built, or build a dropout only where p is not 0."""
    pooling = tiny(model_type).facts.pooling
    for p in (0.0, 0.4):
        source = replace(tiny(model_type), packing_note="the library's own attention, which can be watched")
        config = SimcseConfig(dropout=p, pooling=pooling, max_length=16, head="none")
        net = SentenceNetwork(config, source, seed=0).train()
        with DropoutCounter() as counter, torch.no_grad():
            views = net.encode({"anchor": SENTENCES, "positive": SENTENCES})
        differ = not torch.allclose(views["anchor"], views["positive"], atol=1e-4)
        assert differ is (p > 0)
        assert [count.kind for count in counter.counts].count("attention") == 2  # one per layer
        for count in counter.counts:
            assert abs(count.share - p) <= 6 * (0.25 / count.values) ** 0.5
    kinds = {"attention"} if model_type in ("eurobert", "llama", "qwen3") else {"attention", "hidden"}
    assert set(tiny(model_type).facts.drops) == kinds
    assert tiny(model_type).facts.dropout_problem == ""


def test_a_fused_attention_is_counted_inside() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 30, 8) for _ in range(3))
    with DropoutCounter() as counter:
        F.scaled_dot_product_attention(query, key, value, None, 0.25)
        F.scaled_dot_product_attention(query, key, value, dropout_p=0.25, is_causal=True)
    assert [count.values for count in counter.counts] == [2 * 4 * 30 * 30, 2 * 4 * 30 * 31 // 2]
    assert all(c.kind == "attention" and c.fits(0.25) and not c.fits(0.4) for c in counter.counts)


class _OwnDropout(nn.Module):
    """A probability of the family's own that no attribute holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.1, self.training)


def test_a_dropout_that_does_not_follow_is_refused_by_name() -> None:
    loaded = tiny("bert")
    model = make_model(loaded, 0.0).eval()
    model.encoder.layer[1].output.dropout = _OwnDropout().eval()
    facts = probe("mine", model, Template(loaded.prefix, loaded.suffix), True)
    assert facts.dropout_problem.startswith("two views differ at dropout 0")
    assert unfit(facts, "mine", {"dropout": [0.0]}) == []
    ((name, message),) = unfit(facts, "mine", {"dropout": [0.3]})
    assert (name, message[:40]) == ("dropout", "expected 0 for mine (bert), got 0.3: two")

    class Late(_OwnDropout):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x, 0.1, self.training and model.config.hidden_dropout_prob > 0)

    model.encoder.layer[1].output.dropout = Late().eval()
    facts = probe("mine", model, Template(loaded.prefix, loaded.suffix), True)
    assert "hidden dropout" in facts.dropout_problem
    assert facts.dropout_problem.endswith(", not 0.3")


def test_a_family_without_dropout_trains_at_0_only() -> None:
    facts = tiny("mamba").facts
    assert facts.drops == ()
    with pytest.raises(EncoderError, match=r"dropout: expected 0 for .*mamba \(mamba\), got 0.1: the family has none"):
        network("mamba", pooling="last")
    network("mamba", pooling="last", dropout=0.0)


def test_vectors_that_depend_on_padding_are_refused() -> None:
    for model_type in ("fnet", "convbert"):
        with pytest.raises(EncoderError, match=f"the vectors of {model_type} depend on the padding of their batch"):
            load_encoder(str(folder_of(model_type)))


def test_what_gives_no_sentence_vectors_is_one_line() -> None:
    with pytest.raises(EncoderError, match="t5 gives no sentence vectors here: ") as caught:
        load_encoder(str(folder_of("t5")))
    assert "\n" not in str(caught.value)


def test_pooling_must_read_a_token_that_sees_the_sentence() -> None:
    for model_type in ("llama", "gpt2"):
        with pytest.raises(EncoderError, match=r"pooling: cls reads the first token, .* its own pooling is last"):
            network(model_type)
    for pooling in ("last", "avg"):
        net = network("llama", pooling=pooling)
        assert torch.isfinite(net.embed(SENTENCES)).all()


@pytest.mark.parametrize("model_type", ["albert", "rembert", "electra"])
def test_the_mlm_head_has_the_width_of_the_word_embeddings(model_type: str) -> None:
    net = network(model_type, mlm_weight=0.1).train()
    loss = net.mlm_loss({"anchor": SENTENCES}, np.random.default_rng(2))
    loss.backward()
    assert torch.isfinite(loss)
    assert net.mlm_head is not None
    assert net.mlm_head.dense.weight.shape == (16, 32)


@pytest.mark.parametrize("model_type", ["bert", "albert"])
def test_the_pooler_that_an_encoder_came_with(model_type: str) -> None:
    """ALBERT's and BigBird's are bare linear layers, whose tanh is elsewhere."""
    model = tiny(model_type).model.eval()
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    with torch.no_grad():
        out = model(input_ids=ids)
        ours = pretrained_pooler(model, out.last_hidden_state[:, 0])
    torch.testing.assert_close(ours, out.pooler_output)


def test_the_pretrained_head_of_albert_is_found(tmp_path: Path) -> None:
    from transformers import AlbertForMaskedLM, AutoTokenizer

    loaded = tiny("albert")
    model = AlbertForMaskedLM(loaded.config)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder_of("albert")).save_pretrained(tmp_path)
    head = load_encoder(str(tmp_path)).mlm_head
    torch.testing.assert_close(head["dense.weight"], model.predictions.dense.weight.detach())
    assert set(head) == {"dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias"}


def test_facts_are_measured_once_per_fingerprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny("bert")
    monkeypatch.setattr(probing, "_dropout", lambda *_: pytest.fail("measured again"))
    assert load_encoder(str(folder_of("bert"))).facts == tiny("bert").facts
    before = facts_key(folder_of("bert"))
    for file in folder_of("bert").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tmp_path / "config.json").read_text()) | {"x": 1}))
    assert facts_key(tmp_path) != before


def test_another_process_prints_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts(str(folder_of("llama")))
    assert restored(json.loads(capsys.readouterr().out)) == tiny("llama").facts


SPACE = """
method: simcse
encoder: {encoder}
data: {{train: builtin, dev: [builtin]}}
metric: {{name: builtin_dev}}
params:
  learning_rate: {{float: [1e-5, 1e-4], log: true}}
  max_length: 100
  mlm_weight: {{float: [0.0, 0.1]}}
  pooling: {{choice: [last, cls]}}
search: {{trials: 2}}
train:
  epochs: 1
"""


def test_check_names_file_line_and_hyperparameter(tmp_path: Path) -> None:
    tiny("llama"), tiny("mamba")
    space = tmp_path / "bad.yaml"
    space.write_text(SPACE.format(encoder=folder_of("llama")).lstrip())
    (checked,) = check_spaces([space])
    assert [line.removeprefix(f"{space}:").split(": ")[:2] for line in checked.problems] == [
        ["7", "params.max_length"],
        ["8", "params.mlm_weight"],
        ["9", "params.pooling"],
    ]
    fixed = [
        "params.max_length=32", "params.mlm_weight=0.0", "params.pooling=last",
    ]  # fmt: skip
    (checked,) = check_spaces([space], fixed)
    assert checked.problems == ()
    assert "  note: dropout: llama has it on attention probabilities only" in checked.lines()
    space.write_text(SPACE.format(encoder=folder_of("mamba")).lstrip())
    (checked,) = check_spaces([space], fixed)
    (line,) = checked.problems
    assert line.startswith(f"{space}:2: encoder: dropout is 0.1 by default: expected 0 for ")
    (checked,) = check_spaces([space], [*fixed, f"encoder={folder_of('fnet')}"])
    (line,) = checked.problems
    assert line.startswith("--set encoder: the vectors of fnet depend on the padding")


@pytest.mark.parametrize("older", [True, False])
def test_settings_beside_the_encoder_of_a_sentence_transformers_folder(older: bool, tmp_path: Path) -> None:
    def write(name: str, content: Any) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))

    assert (left_out(tmp_path), trained_length(tmp_path)) == (("", ""), 0)
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    write("modules.json", [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in kinds])
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    write("Pooling/config.json", modes if older else {"pooling_mode": "mean"})
    key = facts_key(tmp_path)
    write("Pooling/config.json", {**modes, "pooling_mode_cls_token": True} if older else {"pooling_mode": "lasttoken"})
    assert facts_key(tmp_path) != key
    write("sentence_bert_config.json", {"max_seq_length": 64} if older else {})
    write("tokenizer_config.json", {"model_max_length": 512 if older else 64})
    write("config_sentence_transformers.json", {"prompts": {"query": "q: ", "document": "", "STS": "s: "}})
    pooling = "cls and avg" if older else "last"
    others = "Dense, Normalize (vectors are compared by cosine), prompts query, STS (give them as data.prompts)"
    assert left_out(tmp_path) == (pooling, others)
    assert trained_length(tmp_path) == 64
    write("modules.json", "no list")
    write("config_sentence_transformers.json", [1])
    assert (left_out(tmp_path), trained_length(tmp_path)) == (("", ""), 0)


def test_what_is_left_out_of_a_folder_is_a_note(tmp_path: Path) -> None:
    for file in folder_of("bert").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "modules.json").write_text(
        '[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Normalize"}]'
    )
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    facts = load_encoder(str(tmp_path)).facts
    for pooling, given in ((["avg"], "avg, as in the folder"), (["cls", "avg"], "cls, avg, the folder's is avg")):
        assert facts.notes(pooling) == [
            f"a sentence-transformers folder: pooling is set by the space ({given}); left out: Normalize (vectors are "
            "compared by cosine)"
        ]
    assert restored(json.loads(json.dumps(stored(facts)))) == facts


def test_set_dropout_leaves_what_belongs_to_other_heads() -> None:
    model = make_model(replace(tiny("bert")), 0.2)
    model.config.classifier_dropout = 0.7
    set_dropout(model, 0.3)
    assert model.config.classifier_dropout == 0.7
    assert model.config.hidden_dropout_prob == 0.3


def test_prompts_stand_before_the_texts_of_their_kind(tmp_path: Path) -> None:
    """Anchors are queries, positives and negatives documents; in dev pairs both sides are queries."""
    from trainables.methods.method import tokenised_sentences, tokenised_triplets
    from trainables.training.method_trial import load_inputs

    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\ncat\tdog\t0.5\ndog\tmat\t0.1\n")
    train = tmp_path / "train.txt"
    train.write_text("bird\ncat\n")
    data = {
        "train": str(train),
        "dev": [str(pairs)],
        "language": "en",
        "prompts": {"query": "red ", "document": "old "},
    }
    spec = TrialSpec(
        method="simcse", encoder=str(folder_of("qwen3")), data=data, metric="pairs_dev", folder=str(tmp_path / "t")
    )
    inputs = load_inputs(spec, torch.device("cpu"))
    word = inputs.source.tokenizer.convert_tokens_to_ids
    config = SimcseConfig()
    (sentence,) = tokenised_sentences(inputs.corpus.columns, config, 0, inputs.tools).columns.values()
    assert sentence[0].tolist() == [word("red"), word("bird")]
    columns = tokenised_triplets({"anchor": ["cat"], "positive": ["dog"], "negative": ["mat"]}, config, 0, inputs.tools)
    assert {role: column[0].tolist() for role, column in columns.columns.items()} == {
        "anchor": [word("red"), word("cat")],
        "positive": [word("old"), word("dog")],
        "negative": [word("old"), word("mat")],
    }
    assert {tuple(s.tolist()) for s in inputs.sets.sentences} == {(word("red"), word(w)) for w in ("cat", "dog", "mat")}


@pytest.mark.parametrize(("max_length", "said"), [(6, "refused"), (7, "noted"), (20, "")])
def test_a_prompt_leaves_room_for_the_text(tmp_path: Path, max_length: int, said: str) -> None:
    """Four words and two special tokens: with max_length 6 a trial would see its prompt alone."""
    space = tmp_path / "prompted.yaml"
    space.write_text(
        f"method: simcse\nencoder: {folder_of('bert')}\ndata:\n  train: builtin\n  dev: [builtin]\n  prompts:\n"
        '    query: "red old red old "\nmetric: {name: builtin_dev}\n'
        f"params: {{max_length: {max_length}, temperature: {{choice: [0.05, 0.1]}}}}\nsearch: {{trials: 2}}\n"
    )
    (checked,) = check_spaces([space])
    message = "its 4 tokens and 2 special ones leave no room for the text: expected max_length above 6, got 6"
    assert list(checked.problems) == [f"{space}:7: data.prompts.query: {message}"] * (said == "refused")
    noted = "data.prompts.query: 4 tokens of max_length 7, 1 left for the text"
    assert (noted in checked.notes) is (said == "noted")


@pytest.mark.parametrize("method", ["simcse", "whitening"])
def test_a_trial_without_room_for_its_texts_is_refused(method: str, tmp_path: Path) -> None:
    data = {"train": "builtin", "dev": ["builtin"], "language": "en", "prompts": {"query": "the man and the dog "}}
    params = {"max_length": 7, "max_examples": 8, "batch_size": 4}
    spec = TrialSpec(
        method=method, encoder="builtin:tiny", data=data, metric="builtin_dev", params=params, folder=str(tmp_path)
    )
    outcome = run_trial(spec, lambda _: "go")
    assert outcome.stop == "failed:data"
    assert outcome.reason.startswith("data.prompts.query: its 6 tokens and 2 special ones leave no room for the text")
