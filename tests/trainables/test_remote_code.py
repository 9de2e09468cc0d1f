"""Encoders with code of their own: run where a space allows it, pinned, in own studies, and exported with the code."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hub_server import COMMIT, TOKEN, HubServer, hub_server
from trained_trials import trial_folder

from analysis.checkpoints.export import export
from analysis.checkpoints.trained import load_trained
from search.cli.main import main
from search.space import load_space
from trainables.contract.errors import EncoderError
from trainables.contract.origin import at_origin
from trainables.contract.remote_code import ALLOWED_VARIABLE
from trainables.contract.trial import TrialSpec
from trainables.data.tokens import cache_dir
from trainables.encoders.builtin_encoder import encoder_folder
from trainables.encoders.load import change, load_encoder, revision
from trainables.training.trial import run_trial

pytestmark = pytest.mark.costly
CONFIGURATION = """
import os
import pathlib

from transformers import BertConfig

if mark := os.environ.get("CODE_RAN"):
    pathlib.Path(mark).touch()


class OddConfig(BertConfig):
    model_type = "odd"
"""
MODELING = """
from transformers import BertModel

from .configuration_odd import OddConfig


class OddModel(BertModel):
    config_class = OddConfig

    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        found.last_hidden_state = found.last_hidden_state + 1
        return found
"""
SPACE = """name: odd
method: simcse
encoder: {encoder}
data: {{train: builtin, dev: [builtin]}}
metric: {{name: builtin_dev}}
params: {{pooling: avg, head: none, temperature: {{choice: [0.05, 0.1]}}}}
search: {{trials: 2}}
"""


def odd_encoder(folder: Path, elsewhere: str = "") -> Path:
    """A BERT whose classes are in files beside its weights, or in another repository; its states are larger by 1."""
    shutil.copytree(encoder_folder("en", cache_dir()), folder)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "configuration_odd.OddConfig", "AutoModel": "modeling_odd.OddModel"}
    auto_map = {key: elsewhere + name for key, name in names.items()}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "odd", "auto_map": auto_map}))
    if not elsewhere:
        (folder / "configuration_odd.py").write_text(CONFIGURATION)
        (folder / "modeling_odd.py").write_text(MODELING)
    return folder


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODE_RAN", str(tmp_path / "it ran"))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return odd_encoder(tmp_path / "odd")


def check(text: str) -> tuple[int, str]:
    Path("odd.yaml").write_text(text)
    done = CliRunner().invoke(main, ["check", "odd.yaml"])
    return done.exit_code, done.output


@pytest.mark.usefixtures("odd")
def test_code_runs_with_the_key_only(tmp_path: Path) -> None:
    code, output = check(SPACE.format(encoder="./odd"))
    names = "configuration_odd.OddConfig, modeling_odd.OddModel"
    assert (code, output) == (
        2,
        f"odd.yaml:3: encoder: has code of its own ({names}); to run it, write "
        "encoder: {name: ..., trust_remote_code: true}\n",
    )
    assert not (tmp_path / "it ran").exists()
    code, output = check(SPACE.format(encoder="{name: ./odd, trust_remote_code: true}"))
    assert code == 0, output
    assert "runs the code of ./odd (trust_remote_code)" in output
    assert (tmp_path / "it ran").exists()
    space = load_space("odd.yaml")
    assert space.encoder == "./odd?trust_remote_code"
    assert space.resolved()["encoder"] == {"name": "./odd", "trust_remote_code": True}
    assert load_space(space.resolved()).encoder == space.encoder


SHA = "0123456789abcdef" * 2 + "01234567"


@pytest.mark.parametrize(
    ("encoder", "line"),
    [
        ("{name: a/b, trust_remote_code: true}",
         "encoder.revision: trust_remote_code needs a commit of 40 hexadecimal digits, got none"),
        ("{name: a/b, revision: main, trust_remote_code: true}",
         "encoder.revision: trust_remote_code needs a commit of 40 hexadecimal digits, got 'main'"),
        ("{name: a/b, revision: main, trust_remote_code: please}",
         "encoder.trust_remote_code: expected true or false, got 'please'"),
        ("{name: a/b, revision: main, trust_remote_cod: true}",
         "encoder.trust_remote_cod: unknown; did you mean 'trust_remote_code'?"),
        (f"{{name: a/b, revision: {SHA}, code_revision: {SHA}}}",
         "encoder.code_revision: expected a commit of 40 hexadecimal digits, beside trust_remote_code: true, "
         f"got '{SHA}'"),
        ("{name: a/b@main, trust_remote_code: true}",
         "encoder.name: expected a name alone: the revision has its own key, got 'a/b@main'"),
        ("{name: ./odd, revision: main}", "encoder.revision: expected none of a folder, got 'main'"),
        ("{name: 3}", "encoder.name: expected text, got 3"),
        (f"a/b@{SHA}?trust_remote_code",
         "encoder: expected {name: ..., revision: <commit>, trust_remote_code: true}, got a text"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("odd")
def test_mistakes_in_the_key_are_one_line(encoder: str, line: str) -> None:
    assert check(SPACE.format(encoder=encoder)) == (2, f"odd.yaml:3: {line}\n")


@pytest.mark.usefixtures("odd")
def test_word_vectors_have_no_code() -> None:
    text = SPACE.replace("simcse", "gclsr").replace("pooling: avg, head: none, ", "")
    lines = check(text.format(encoder="{name: ./odd, trust_remote_code: true}"))[1].splitlines()
    assert "odd.yaml:3: encoder.trust_remote_code: expected none: the method takes a file of word vectors" in lines


def trial(folder: Path, encoder: str) -> TrialSpec:
    params = {"pooling": "avg", "head": "none", "batch_size": 8, "max_examples": 16, "eval_examples": 16}
    data = {"train": "builtin", "dev": ["builtin"], "language": "en"}
    return TrialSpec(
        method="simcse", encoder=encoder, data=data, metric="builtin_dev", params=params, folder=str(folder)
    )


def own_study(folder: Path, user: str = "") -> Path:
    """The folder of a trial in a study that this user began."""
    (folder / "trials").mkdir(parents=True)
    (folder / "tracking.jsonl").write_text(json.dumps({"event": "space", "user": user or getpass.getuser()}) + "\n")
    return folder / "trials" / "c0.0"


def test_a_trial_with_code_is_trained_and_exported_with_it(odd: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    source = f"{odd}?trust_remote_code"
    folder = own_study(tmp_path / "study")
    outcome = run_trial(trial(folder, source), lambda _: "go")
    assert outcome.stop == "completed", outcome.traceback
    trained = load_trained(str(folder))
    export(trained, tmp_path / "model", "")
    shutil.rmtree(odd)  # the export needs it no more
    texts = ["a small dog", "the man in the red house"]
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)
    assert type(model[0].auto_model).__name__ == "OddModel"
    np.testing.assert_allclose(model.encode(texts), trained.embed(texts), atol=1e-5)
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu")


def test_changed_code_is_a_changed_encoder(odd: Path) -> None:
    source = f"{odd}?trust_remote_code"
    recorded = revision(load_encoder(source))
    assert change(load_encoder(source), recorded, weights=True) == ""
    (odd / "modeling_odd.py").write_text(MODELING.replace("+ 1", "+ 2"))
    assert change(load_encoder(source), recorded, weights=True) == "the configuration or tokenizer files"


@pytest.mark.parametrize("who", ["another user", "an unknown user", "this user"])
def test_code_of_another_users_study_runs_where_it_is_allowed(
    who: str, odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, users = f"{odd}?trust_remote_code", {"another user": "mallory", "this user": getpass.getuser()}
    folder = trial_folder(tmp_path / "made", encoder="builtin:tiny")
    shutil.move(folder, target := own_study(tmp_path / "study", users.get(who, "")))
    record = json.loads((target / "best" / "trial.json").read_text())
    record["spec"]["encoder"], record["encoder"] = source, None
    (target / "best" / "trial.json").write_text(json.dumps(record))
    if who == "an unknown user":
        (tmp_path / "study" / "tracking.jsonl").unlink()
    space: dict[str, Any] = {"train": "builtin", "dev": ["builtin"]}
    if who == "this user":
        load_trained(str(target))
        return
    began = "mallory" if who == "another user" else "somebody else"
    message = (
        rf"runs code of its own \(trust_remote_code\), in a study that {began} began; "
        f"to allow it, set {ALLOWED_VARIABLE}={odd}$"
    )
    for _ in range(2):
        with pytest.raises(EncoderError, match=message):
            load_trained(str(target))
        with (
            pytest.raises(EncoderError, match=message),
            at_origin(str(tmp_path / "study/tracking.jsonl"), source, space),
        ):
            pass
        assert not (tmp_path / "it ran").exists()
        monkeypatch.setenv(ALLOWED_VARIABLE, "some/other@commit")
    monkeypatch.setenv(ALLOWED_VARIABLE, f"some/other@commit, {odd}")
    load_trained(str(target))


def from_hub(hub: HubServer, home: Path, source: str) -> str:
    """What a process prints that loads an encoder from this hub: its class, or why not."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "http", "HTTP"))}
    where = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home)}
    code = (
        "from trainables.encoders.load import load_encoder\nfrom trainables.contract.errors import EncoderError\n"
        f"try:\n    print(type(load_encoder({source!r}).model).__name__)\n"
        "except EncoderError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=kept | where, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_code_from_the_hub_is_that_of_the_commit(odd: Path, tmp_path: Path) -> None:
    there = odd_encoder(tmp_path / "elsewhere", elsewhere="me/odd--")
    with hub_server() as hub:
        for name, folder in (("me/odd", odd), ("me/other", there)):
            files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
            hub.repositories[name] = {"private": False, "files": files}
        plain, trusted = f"me/odd@{COMMIT}", f"me/odd@{COMMIT}?trust_remote_code"
        untrusted = from_hub(hub, tmp_path / "hf", plain)
        assert untrusted.endswith("write encoder: {name: ..., revision: <commit>, trust_remote_code: true}")
        assert not any(line.endswith(".py") for line in hub.requests)
        assert not (tmp_path / "it ran").exists()
        assert from_hub(hub, tmp_path / "hf", trusted) == "OddModel"  # the files that were there lacked it
        assert (tmp_path / "it ran").exists()
        assert "expected a commit of 40" in from_hub(hub, tmp_path / "hf", "me/odd@main?trust_remote_code")
        other = f"me/other@{COMMIT}?trust_remote_code"
        lacking = "its code is in me/odd; name the commit there as code_revision"
        assert lacking in from_hub(hub, tmp_path / "other", other)
        assert from_hub(hub, tmp_path / "other", f"{other}={COMMIT}") == "OddModel"
