"""What a trial reads and writes in a storage behind s3://, an S3 server (moto) on this machine's loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
import torch
from botocore.exceptions import ClientError
from s3fs.errors import translate_boto_error

from search.store.layout import StudyFolder
from trainables.contract.formats import CHECKPOINT, stamp
from trainables.contract.trial import Outcome, TrialSpec
from trainables.on_ray.messages import study_pausing
from trainables.training import method_trial
from trainables.training.checkpoint import TrialFiles
from trainables.training.trial import run_trial

STORAGE = "s3://bucket/search"


def test_a_trial_sees_the_pause_that_the_driver_marks_elsewhere(bucket: Any) -> None:
    folder = StudyFolder(STORAGE, "mine")
    spec = TrialSpec(
        method="simcse", encoder="builtin:tiny", data={}, metric="stsb_dev", mode="max", params={}, seed=0,
        folder=folder.trial("t0000"), workers=1, gpus=0, cpus=1,
    )  # fmt: skip
    assert not study_pausing(spec)
    bucket.put_object(Bucket="bucket", Key="search/mine/PAUSE", Body=b"")
    assert study_pausing(spec)
    bucket.delete_object(Bucket="bucket", Key="search/mine/PAUSE")
    assert not study_pausing(spec)
    folder.mark_pause(True)
    assert study_pausing(spec)
    folder.mark_pause(False)
    assert not study_pausing(spec)


def test_a_trials_files(bucket: Any) -> None:
    folder = StudyFolder(STORAGE, "mine")
    files = TrialFiles(folder.trial("t0000"))
    assert files.load_last() is None
    files.save_last({"step": 1})
    files.save_last({"step": torch.tensor(2)})
    assert files.load_last() == {"step": torch.tensor(2)}
    torn = bucket.get_object(Bucket="bucket", Key="search/mine/trials/t0000/last/state.pt")["Body"].read()[:100]
    bucket.put_object(Bucket="bucket", Key="search/mine/trials/t0000/last/state.pt", Body=torn)
    assert files.load_last() is None, "a state that cannot be read counts as none"
    files.drop_last()
    files.drop_last()
    with pytest.raises(FileNotFoundError, match=r"best/weights\.safetensors"):
        files.load_best()
    weights = {"w": torch.arange(4.0)}
    files.save_best(weights, {"seed": 3}, {"stsb": np.zeros(2, np.float32)})
    read, trial = files.load_best()
    assert torch.equal(read["w"], weights["w"])
    assert trial == {"seed": 3, **stamp(CHECKPOINT)}
    keys = [o["Key"] for o in bucket.list_objects_v2(Bucket="bucket", Prefix="search/mine/trials/")["Contents"]]
    assert sorted(key.rsplit("/", 1)[-1] for key in keys) == ["similarities.npz", "trial.json", "weights.safetensors"]
    assert folder.delete(folder.trial("t0000"))
    assert not folder.delete(folder.trial("t0000"))


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ("no credentials", "NoCredentialsError: Unable to locate credentials"),
        ("another endpoint", "EndpointConnectionError: Could not connect to the endpoint URL"),
        ("403", "ClientError: An error occurred (AccessDenied) when calling the PutObject operation"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_a_node_that_cannot_use_the_storage_is_no_fault_of_the_point(
    problem: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if problem == "no credentials":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
    elif problem == "another endpoint":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()

    def trains(spec: TrialSpec, *_: Any) -> Outcome:
        if problem == "403":
            denied = {"Error": {"Code": "AccessDenied", "Message": "no"}}
            raise translate_boto_error(ClientError(denied, "PutObject"))
        TrialFiles(spec.folder).save_last({"step": 1})
        raise AssertionError

    monkeypatch.setattr(method_trial, "train_by_method", trains)
    folder = StudyFolder(STORAGE, "mine").trial("t0000")
    spec = TrialSpec(method="simcse", encoder="builtin:tiny", data={}, metric="m", folder=folder)
    outcome = run_trial(spec, lambda _: "go")
    assert outcome.stop == "failed:disk"
    assert outcome.reason.startswith(f"storage s3://bucket/search/mine: {line}")
    assert outcome.reason.endswith("(trials have the environment of their node's `ray start`)")
