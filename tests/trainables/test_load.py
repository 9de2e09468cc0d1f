"""Loading encoders: folders, tokenizers, the hub's absence, copies for trials, revisions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors.torch import load_file, save_file
from tiny_families import family
from torch import nn
from toy_encoders import FAMILIES, SHAPE, model_of, save, tokenizer_of
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from benchmarks.tiny_encoders import save_tiny
from trainables.contract.errors import DataError, EncoderError
from trainables.encoders import locate
from trainables.encoders.load import change, check_unknown, load_encoder, make_model, revision, token_ids
from trainables.encoders.locate import folder_revision
from trainables.encoders.network import SentenceNetwork
from trainables.encoders.tokenizing import make_padding
from trainables.methods.simcse.config import SimcseConfig


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_loads_and_packs(name: str, tmp_path: Path) -> None:
    loaded = load_encoder(str(save(name, tmp_path)))
    assert loaded.packing_note == ""
    tokenizer = tokenizer_of(name)
    assert loaded.prefix == (tokenizer.cls_token_id,)
    assert loaded.suffix == (tokenizer.sep_token_id,)
    again = load_encoder(str(tmp_path))
    assert (again.fingerprint, again.tokenizer_fingerprint) == (loaded.fingerprint, loaded.tokenizer_fingerprint)
    other = load_encoder(str(save(name, tmp_path / "other", seed=1)))
    assert other.fingerprint != loaded.fingerprint
    assert other.tokenizer_fingerprint == loaded.tokenizer_fingerprint


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
def test_missing_encoders_are_one_line_errors(source: str, message: str) -> None:
    assert_one_line_error(source, message)


def assert_one_line_error(folder: Path | str, message: str) -> None:
    with pytest.raises(EncoderError, match=message) as caught:
        load_encoder(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("asked", ["page", "files"])
def test_a_gated_encoder_needs_a_token(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub shows the page of most gated models to everyone."""
    page = SimpleNamespace(gated="manual", siblings=[], sha="a" * 40)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", answer(GatedRepoError if asked == "page" else page))
    monkeypatch.setattr("huggingface_hub.HfApi.auth_check", answer(GatedRepoError))
    expected = (
        "encoder 'org/gated': gated: accept its terms on the hub, then `hf auth login`, or set HF_TOKEN (on a cluster "
        "on every node)"
    )
    with pytest.raises(EncoderError) as raised:
        locate.check_encoder("org/gated")
    assert str(raised.value) == expected
    assert_one_line_error("org/gated", r"'org/gated': gated: accept its terms")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", answer(page))
    monkeypatch.setattr("huggingface_hub.HfApi.auth_check", answer(None))
    locate.check_encoder("org/gated")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RepositoryNotFoundError, "no such model .*; check the spelling, or it is private: set HF_TOKEN$"),
        (RevisionNotFoundError, "no such revision .*; check the spelling$"),
    ],
)
def test_an_encoder_that_the_hub_does_not_have_may_be_private(
    error: type[HfHubHTTPError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", answer(error))
    assert_one_line_error("org/name", message)


def answer(given: Any) -> Callable[..., Any]:
    """A request to the hub; given: what comes back, or the kind of its error."""

    def request(*_: Any, **__: Any) -> Any:
        if isinstance(given, type):
            response: Any = SimpleNamespace(headers={}, request=None)
            raise given("401 Client Error", response=response)
        return given

    return request


def test_unusable_folders_are_named(tmp_path: Path) -> None:
    assert_one_line_error(tmp_path, r"has no config\.json")
    save("bert", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    assert_one_line_error(tmp_path, "cannot be read")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {f"module.{k}": v for k, v in t.items()}, "lacks 53 of the 53 weights of bert, such as embeddings."),
        (lambda t: {k: v for k, v in t.items() if "layer.1." not in k}, "lacks 16 of .*such as encoder.layer.1."),
        (lambda t: t | {"embeddings.LayerNorm.weight": torch.ones(7)}, "cannot be read: .*mismatched|size"),
    ],
    ids=["other names", "a block missing", "another shape"],
)
def test_weights_that_were_not_loaded_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    file = save("bert", tmp_path) / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    assert_one_line_error(tmp_path, message)


def test_a_checkpoint_without_a_pooler_has_none(tmp_path: Path) -> None:
    """The library draws one for masked-language-model checkpoints; the caller's random state stays as it is."""
    BertForMaskedLM(BertConfig(vocab_size=19, **SHAPE)).save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    loaded = load_encoder(str(tmp_path))
    assert torch.equal(torch.rand(3), expected)
    assert load_encoder(str(tmp_path)).fingerprint == loaded.fingerprint
    assert not loaded.facts.pooler
    assert not [name for name in loaded.model.state_dict() if "pooler" in name]  # nor in an export
    with pytest.raises(EncoderError, match=r"pretrained_pooler needs a pooler, the checkpoint .* has none"):
        SentenceNetwork(SimcseConfig(pooling="pretrained_pooler"), loaded, 0)


def test_make_model_sets_every_dropout_and_copies(tmp_path: Path) -> None:
    for name in FAMILIES:
        loaded = load_encoder(str(save(name, tmp_path / name)))
        model = make_model(loaded, 0.35)
        assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.35}
        assert isinstance(getattr(model, "pooler", nn.Identity()), nn.Identity)
        before = loaded.model.get_input_embeddings().weight.clone()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert torch.equal(loaded.model.get_input_embeddings().weight, before)
        assert loaded.facts.pooler is (name != "distilbert")
        assert (getattr(make_model(loaded, 0.1, pooler=True), "pooler", None) is None) is (name == "distilbert")


@pytest.mark.parametrize("old_names", [False, True])
def test_the_pretrained_mlm_head_is_found(old_names: bool, tmp_path: Path) -> None:
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
    head, transform = load_encoder(str(tmp_path)).mlm_head, model.cls.predictions.transform
    for name, expected in (
        ("dense.weight", transform.dense.weight), ("norm.weight", transform.LayerNorm.weight),
        ("norm.bias", transform.LayerNorm.bias), ("bias", model.cls.predictions.bias),
    ):  # fmt: skip
        torch.testing.assert_close(head[name], expected.detach())


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """The library makes one of five special tokens, and every word is unknown to it."""
    model_of("bert").save_pretrained(tmp_path)
    assert_one_line_error(tmp_path, r"has no tokenizer; expected one of .*tokenizer\.json")


def change_json(file: Path, **change: Any) -> None:
    """Entries of a JSON file; None takes one out."""
    content = json.loads(file.read_text()) | change
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_batches_are_padded_and_cut_at_the_right_end(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    plain = load_encoder(str(save("bert", tmp_path / "plain")))
    folder = save("bert", tmp_path / "left")
    change_json(folder / "tokenizer_config.json", padding_side="left", truncation_side="left")
    loaded = load_encoder(str(folder))
    loaded.tokenizer.save_pretrained(tmp_path / "export")
    exported = AutoTokenizer.from_pretrained(tmp_path / "export")
    for tokenizer in (loaded.tokenizer, exported):
        assert (tokenizer.padding_side, tokenizer.truncation_side) == ("right", "right")
        rows = tokenizer(["red cat", "dog on the mat"], padding=True, truncation=True, max_length=5)["input_ids"]
        assert [row.count(0) for row in rows] == [1, 0]
        assert rows[0][-1] == 0
        assert rows[1][1] == tokenizer.convert_tokens_to_ids("dog")
    assert loaded.tokenizer_fingerprint == plain.tokenizer_fingerprint


@pytest.mark.parametrize(("pad", "taken"), [(1, "<pad>"), (6, "</s>")])  # 6 is a word
def test_a_tokenizer_without_a_padding_token_takes_another(pad: int, taken: str, tmp_path: Path) -> None:
    folder = save_tiny(family("bert"), tmp_path)
    change_json(folder / "tokenizer_config.json", pad_token=None, eos_token=None)
    change_json(folder / "config.json", pad_token_id=pad)
    tokenizer = load_encoder(str(folder)).tokenizer
    assert tokenizer.pad_token == taken
    first, _ = tokenizer(["cat", "dog on mat"], padding=True)["input_ids"]
    assert first[3:] == [tokenizer.convert_tokens_to_ids(taken)] * 2


def test_a_tokenizer_without_special_tokens_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    with pytest.raises(EncoderError, match="has no padding token and no other special token to take"):
        make_padding("here", bare, 0)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    save("bert", tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
    BertTokenizer(vocab={w: i for i, w in enumerate(words)}).save_pretrained(tmp_path)
    assert_one_line_error(tmp_path, "do not belong together: 45 tokens for 19 embeddings")


def test_special_tokens_without_an_embedding(tmp_path: Path) -> None:
    """Gemma 3's tokenizer has one for images, which no sentence gets."""
    folder, tokenizer = save("bert", tmp_path), tokenizer_of("bert")
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    encode = token_ids(load_encoder(str(folder)), "en")
    assert [list(row) for row in encode(["red cat", ""])] == [[5, 8], []]
    with pytest.raises(DataError, match="has no embedding for <image>, which stands in a text: 'a <image>'; take it"):
        list(encode(["red cat", "a <image>"]))
    tokenizer.add_tokens(["word"])
    tokenizer.save_pretrained(folder)
    assert_one_line_error(folder, "do not belong together: 21 tokens for 19 embeddings")
    needed = tokenizer_of("bert")
    needed.add_special_tokens({"mask_token": "<blank>"})
    needed.save_pretrained(folder)
    assert_one_line_error(folder, "its tokenizer uses <blank>, for which its weights have no embedding")


def test_no_code_of_a_model_folder_runs(tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    change_json(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.M"})
    assert_one_line_error(folder, "has code of its own")
    assert not (tmp_path / "ran").exists()


def test_a_broken_bin_beside_good_weights_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_revision_covers_the_files_that_are_read(tmp_path: Path) -> None:
    folder = save("bert", tmp_path / "here")
    found = folder_revision(folder)
    assert load_encoder(str(folder)).revision == found
    copied = shutil.copytree(folder, tmp_path / "there")
    (copied / "README.md").write_text("About it")
    (copied / "training_args.bin").write_bytes(b"0")
    assert folder_revision(copied) == found
    change_json(copied / "tokenizer_config.json", model_max_length=7)
    assert folder_revision(copied)["files"] != found["files"]
    other = folder_revision(save("bert", tmp_path / "other", seed=1))
    assert (other["files"], other["weights"] != found["weights"]) == (found["files"], True)


def test_files_added_to_a_hub_snapshot_belong_to_its_commit(tmp_path: Path) -> None:
    snapshots = tmp_path / "models--org--name" / "snapshots"
    started = load_encoder(str(save("bert", snapshots / ("a" * 40))))
    recorded = revision(started)
    assert recorded is not None
    (snapshots / ("a" * 40) / "vocab.extra").write_text("more")
    completed = load_encoder(started.source)
    assert change(completed, recorded, weights=True) == ""
    assert "tokenizer files" in change(completed, recorded | {"commit": "b" * 40}, weights=True)
    older = {key: value for key, value in recorded.items() if key != "commit"}  # known by what was in the folder
    assert (change(started, older, weights=True), change(completed, older, weights=True) != "") == ("", True)
    elsewhere = load_encoder(str(save("bert", snapshots / ("b" * 40))))  # a commit to its README
    assert change(elsewhere, recorded, weights=True) == ""


def test_large_weights_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "MIB", 4)
    file = tmp_path / "model.safetensors"
    found = set()
    for changed in (None, 0, 531, 1000):
        content = bytearray(1001)
        if changed is not None:
            content[changed] = 1
        file.write_bytes(content)
        found.add(folder_revision(tmp_path)["weights"])
    assert len(found) == 4
    assert [len(piece) for piece in locate._pieces(file, whole=False)] == [4] * 16
