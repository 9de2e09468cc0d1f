"""Loading encoders from folders, the hub's absence, copies for trials, and the check that decides about packing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from toy_encoders import FAMILIES, SHAPE, model_of, save, sentences, tokenizer_of
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, DebertaV2Config, DebertaV2Model

from trainables.contract.errors import EncoderError
from trainables.encoders import packing_check
from trainables.encoders.load import check_unknown, load_encoder, make_model
from trainables.encoders.packing import pack
from trainables.encoders.packing_check import packing_note, padded_states


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_and_packs(family: str, tmp_path: Path) -> None:
    loaded = load_encoder(str(save(family, tmp_path)))
    assert loaded.family == family
    assert loaded.packing_note == ""
    tokenizer = tokenizer_of(family)
    assert loaded.prefix == (tokenizer.cls_token_id,)
    assert loaded.suffix == (tokenizer.sep_token_id,)
    again = load_encoder(str(tmp_path))
    assert (again.fingerprint, again.tokenizer_fingerprint) == (loaded.fingerprint, loaded.tokenizer_fingerprint)
    other = load_encoder(str(save(family, tmp_path / "other", seed=1)))
    assert other.fingerprint != loaded.fingerprint
    assert other.tokenizer_fingerprint == loaded.tokenizer_fingerprint


def test_padding_follows_the_library(tmp_path: Path) -> None:
    loaded = load_encoder(str(save("bert", tmp_path)))
    given = sentences()
    packed = pack(given, 16, loaded.prefix, loaded.suffix)
    states = padded_states(loaded.model, packed, (0, 1, 3))
    for i, tokens in enumerate(given):
        ids = torch.tensor([[*loaded.prefix, *tokens.tolist(), *loaded.suffix]])
        alone = loaded.model(input_ids=ids, output_hidden_states=True).hidden_states
        place = packed.order.tolist().index(i)
        start, length = packed.starts[place], packed.lengths[place]
        for number, state in states.items():
            torch.testing.assert_close(state[start : start + length], alone[number][0], rtol=0, atol=1e-5)


def test_the_builtin_encoder(tmp_path: Path) -> None:
    english = load_encoder("builtin:tiny", cache_dir=tmp_path)
    chinese = load_encoder("builtin:tiny", language="zh", cache_dir=tmp_path)
    assert english.packing_note == chinese.packing_note == ""
    assert english.tokenizer_fingerprint != chinese.tokenizer_fingerprint


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("./no/such/folder", r"encoder './no/such/folder': no such folder; give an existing folder, a hub id or"),
        ("some/where/else", r"no such folder"),
        ("nobody/no-such-model", r"not in the local cache and the hub cannot be reached .*; download it"),
        ("nobody/no-such-model@abc123", r"encoder 'nobody/no-such-model@abc123'"),
        ("builtin:huge", r"the only builtin encoder is builtin:tiny"),
    ],
)
def test_missing_encoders_say_what_where_and_what_to_do(source: str, message: str) -> None:
    with pytest.raises(EncoderError, match=message) as caught:
        load_encoder(source)
    assert "\n" not in str(caught.value)


def test_unusable_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"has no config\.json"):
        load_encoder(str(tmp_path))
    save("bert", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(EncoderError, match="cannot be read") as caught:
        load_encoder(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_loading_leaves_the_callers_randomness_alone(tmp_path: Path) -> None:
    BertForMaskedLM(BertConfig(vocab_size=19, **SHAPE)).save_pretrained(tmp_path)  # has no pooler: one is drawn
    tokenizer_of("bert").save_pretrained(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = load_encoder(str(tmp_path))
    assert torch.equal(torch.rand(3), expected)
    assert load_encoder(str(tmp_path)).fingerprint == first.fingerprint


def test_make_model_sets_every_dropout_and_copies(tmp_path: Path) -> None:
    for family in FAMILIES:
        loaded = load_encoder(str(save(family, tmp_path / family)))
        model = make_model(loaded, 0.35)
        assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.35}
        assert isinstance(getattr(model, "pooler", nn.Identity()), nn.Identity)
        before = loaded.model.get_input_embeddings().weight.clone()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert torch.equal(loaded.model.get_input_embeddings().weight, before)


def test_pooler_only_where_asked_and_there(tmp_path: Path) -> None:
    assert make_model(load_encoder(str(save("bert", tmp_path / "a"))), 0.1, pooler=True).pooler is not None
    assert not load_encoder(str(save("distilbert", tmp_path / "b"))).facts.pooler


@pytest.mark.parametrize("old_names", [False, True])
def test_the_pretrained_mlm_head_is_found(old_names: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=19, **SHAPE))
    with torch.no_grad():
        for parameter in model.cls.parameters():
            parameter.normal_()
    model.save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    if old_names:
        renamed = {k.replace("LayerNorm.weight", "LayerNorm.gamma"): v for k, v in load_file(file).items()}
        save_file(renamed, file, metadata={"format": "pt"})
    head = load_encoder(str(tmp_path)).mlm_head
    transform = model.cls.predictions.transform
    torch.testing.assert_close(head["dense.weight"], transform.dense.weight.detach())
    torch.testing.assert_close(head["norm.weight"], transform.LayerNorm.weight.detach())
    torch.testing.assert_close(head["norm.bias"], transform.LayerNorm.bias.detach())
    torch.testing.assert_close(head["bias"], model.cls.predictions.bias.detach())


def test_an_unknown_family_is_padded_and_says_so() -> None:
    model = DebertaV2Model(DebertaV2Config(vocab_size=19, **SHAPE)).eval()
    assert packing_note(model, (2,), (3,)) == "packing does not know the family deberta-v2: batches are padded"


def test_a_failed_check_means_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("bert")
    assert packing_note(model, (2,), (3,)) == ""
    original = packing_check.trunk_of

    def wrong(model: Any) -> Any:
        trunk = original(model)
        assert trunk is not None
        return type(trunk)(**{**vars(trunk), "first_position": 1})

    monkeypatch.setattr(packing_check, "trunk_of", wrong)
    assert "packed and padded passes differ by" in packing_note(model, (2,), (3,))
    monkeypatch.setattr(packing_check, "trunk_of", lambda m: type(original(m))(**{**vars(original(m)), "heads": 5}))
    assert "the packing check failed with RuntimeError: batches are padded" in packing_note(model, (2,), (3,))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """The library makes one of five special tokens, and every word is unknown to it."""
    model_of("bert").save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"has no tokenizer; expected one of .*tokenizer\.json"):
        load_encoder(str(tmp_path))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    save("bert", tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
    BertTokenizer(vocab={w: i for i, w in enumerate(words)}).save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match="do not belong together: 45 tokens for 19 embeddings"):
        load_encoder(str(tmp_path))


def test_no_code_of_a_model_folder_runs_and_none_asks(tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match="cannot be read") as caught:
        load_encoder(str(folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_stray_broken_bin_beside_good_weights_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (save("bert", tmp_path) / "pytorch_model.bin").write_bytes(b"no pickle")
    assert load_encoder(str(tmp_path)).mlm_head == {}
    (line,) = [r.getMessage() for r in caplog.records if "pytorch_model.bin" in r.getMessage()]
    assert "\n" not in line


@pytest.mark.parametrize(("unknown", "said", "refused"), [(1, False, False), (3, True, False), (6, False, True)])
def test_the_share_of_unknown_tokens(
    unknown: int, said: bool, refused: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_encoder(str(save("bert", tmp_path)))
    ids = np.full(10, 7, np.int32)
    ids[:unknown] = loaded.tokenizer.unk_token_id
    if refused:
        with pytest.raises(EncoderError, match="60% of the tokens in the data are unknown"):
            check_unknown(loaded, [ids])
    else:
        check_unknown(loaded, [ids[:4], ids[4:]])
    assert ("30% of the tokens" in caplog.text) is said
