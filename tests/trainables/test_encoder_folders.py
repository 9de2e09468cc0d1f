"""An encoder's folder that is not whole: `search check` names what is missing, and what it would have read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from toy_encoders import save

from search.cli.main import main
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.errors import EncoderError
from trainables.encoders.load import load_source
from trainables.encoders.locate import check_encoder

Damage = Callable[[Path], object]
MODEL = "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("bert", tmp_path_factory.mktemp("encoders") / "bert")


def parts(folder: Path, *files: str) -> None:
    """Weights in two parts, of which some are there."""
    for name in files:
        shutil.copy(folder / MODEL, folder / name)
    (folder / MODEL).unlink()
    where = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / f"{MODEL}.index.json").write_text(json.dumps({"weight_map": where}))


def to_onnx(folder: Path) -> None:
    (folder / "onnx").mkdir()
    shutil.move(folder / MODEL, folder / "onnx" / "model.onnx")


def no_tokenizer(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in ("config.json", MODEL):
            path.unlink()


def nested(folder: Path) -> None:
    (folder / "0_Transformer").mkdir()
    shutil.move(folder / "config.json", folder / "0_Transformer" / "config.json")


def cut(folder: Path, share: float) -> None:
    content = (folder / MODEL).read_bytes()
    (folder / MODEL).write_bytes(content[: int(len(content) * share)])


FAULTS: dict[str, tuple[Damage, str]] = {
    "onnx only": (to_onnx, "no weights: expected model.safetensors or pytorch_model.bin .*; onnx/model.onnx is"),
    "no weights": (lambda f: (f / MODEL).unlink(), "no weights: expected model.safetensors or pytorch_model.bin"),
    "TensorFlow": (lambda f: (f / MODEL).rename(f / "tf_model.h5"), "no weights: .*; tf_model.h5 is of another format"),
    "GGUF": (lambda f: (f / MODEL).rename(f / "model.Q4.gguf"), "no weights: .*; model.Q4.gguf is of another format"),
    "another's .bin": (lambda f: (f / MODEL).rename(f / "training_args.bin"), "no weights: .*; training_args.bin"),
    "a part of two": (lambda f: parts(f, "model-00001-of-00002.safetensors"), "index.json lists model-00002-of-00002"),
    "no index": (lambda f: (parts(f), (f / f"{MODEL}.index.json").write_text("{}")), "json: expected a weight_map"),
    "LFS": (lambda f: (f / MODEL).write_text("version https://git-lfs.github.com/spec/v1\n"), "pointer of Git LFS"),
    "cut": (lambda f: cut(f, 0.9), r"model.safetensors: cut off: expected [\d,]+ bytes, got"),
    "cut header": (lambda f: cut(f, 0.001), "model.safetensors: no safetensors file, or cut off in its header"),
    "empty": (lambda f: (f / MODEL).write_bytes(b""), "model.safetensors: no safetensors file, or cut off"),
    "no tokenizer": (no_tokenizer, "no tokenizer: expected one of tokenizer.json, vocab.txt"),
    "no config": (lambda f: (f / "config.json").unlink(), "expected a folder with config.json, weights and a"),
    "config": (lambda f: (f / "config.json").write_text("{'a': 1}"), "config.json: not JSON"),
    "config list": (lambda f: (f / "config.json").write_text("[]"), "config.json: expected an object"),
    "nested": (nested, "got none; .*/0_Transformer has one"),
    "adapter": (
        lambda f: (f / "config.json").rename(f / "adapter_config.json"), "got an adapter of peft: merge it"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_an_encoder_s_folder_lacks_is_named_by_check(fault: str, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "enc")
    damage, message = FAULTS[fault]
    damage(folder)
    plain = {"name": "x", "method": "simcse", "encoder": str(folder), "preset": "none",
             "data": {"train": "builtin", "dev": ["builtin"]}, "metric": {"name": "builtin_dev"},
             "params": {"learning_rate": {"float": [1e-6, 1e-3]}},
             "search": {"sampler": "random", "trials": 2, "baseline": "none"}}  # fmt: skip
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(plain))
    done = CliRunner().invoke(main, ["check", str(tmp_path / "space.yaml")])
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    assert done.output.startswith(f"{tmp_path / 'space.yaml'}:")
    with pytest.raises(EncoderError, match=message) as caught:
        check_encoder(str(folder))
    assert str(caught.value).partition(": ")[2].strip() in done.output


def test_whole_folders_pass(whole: Path, tmp_path: Path) -> None:
    check_encoder(str(whole))
    load_source(TRANSFORMER, str(whole), "en")
    import torch
    from safetensors.torch import load_file

    other = shutil.copytree(whole, tmp_path / "bin")
    torch.save(load_file(other / MODEL), other / "pytorch_model.bin")
    (other / MODEL).unlink()
    check_encoder(str(other))
    load_source(TRANSFORMER, str(other), "en")
