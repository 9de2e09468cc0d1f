"""cluster.yaml and its variants against the schemas of their readers; a planted typo in each is caught."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import botocore.validate
import jsonschema
import pytest
import yaml
from kubernetes_models import faults
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ray.autoscaler._private import util

ROOT = Path(__file__).parents[2]
AWS = ROOT / "cluster.yaml"
ONPREM, GCP, KUBERAY = (ROOT / "docs" / "cluster" / f"{name}.yaml" for name in ("onprem", "gcp", "kuberay-rayjob"))
DOCKER = ROOT / "docs" / "cluster" / "aws-docker.yaml"
RAY_FILES = [AWS, ONPREM, GCP, DOCKER]
GCP_INSTANCE = {  # fields of Compute Engine's instances.insert that we use
    "machineType", "disks", "metadata", "serviceAccounts", "scheduling",
}  # fmt: skip
GCP_SCHEDULING = {"provisioningModel", "instanceTerminationAction", "onHostMaintenance", "automaticRestart"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def check_ray(config: dict[str, Any]) -> None:
    """Ray's own schema and the provider's defaults."""
    util.validate_config(util.prepare_config(copy.deepcopy(config)))


def check_aws_nodes(config: dict[str, Any]) -> None:
    """Check node_config against botocore's model of RunInstances; Ray passes it on unchecked."""
    shape = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    for name, node in config["available_node_types"].items():
        given = {"MinCount": 1, "MaxCount": 1, **node["node_config"]}
        report = botocore.validate.ParamValidator().validate(given, shape)
        unknown = unknown_members(given, shape)
        assert not report.has_errors(), f"{name}: {report.generate_report()}"
        assert not unknown, f"{name}: unknown {unknown}"


def unknown_members(given: Any, shape: Any) -> list[str]:
    """Keys that a botocore shape does not have, at any depth (the validator itself ignores them)."""
    if shape.type_name == "list":
        return [key for item in given for key in unknown_members(item, shape.member)]
    if shape.type_name != "structure":
        return []
    found = [key for key in given if key not in shape.members]
    for key in given.keys() & shape.members.keys():
        found += unknown_members(given[key], shape.members[key])
    return found


def check_gcp_nodes(config: dict[str, Any]) -> None:
    for name, node in config["available_node_types"].items():
        assert set(node["node_config"]) <= GCP_INSTANCE, name
        for scheduling in node["node_config"].get("scheduling", []):
            assert set(scheduling) <= GCP_SCHEDULING, name
        assert node["resources"], f"{name}: Ray reads no resources off a GCP machine type"


def check_rayjob(manifest: dict[str, Any]) -> None:
    """KubeRay's part against its schema, what is Kubernetes' own against the models of its client."""
    schema = load(Path(__file__).with_name("rayjob_schema.yaml"))
    lines: list[str] = []

    def kubernetes(validator: Any, kind: str, given: Any, _: Any) -> None:  # noqa: ARG001  # jsonschema's interface
        lines.extend(faults(given, kind))

    validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"x-kubernetes": kubernetes})
    validator(schema).validate(manifest)
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("check", "paths"),
    [(check_ray, RAY_FILES), (check_aws_nodes, [AWS, DOCKER]), (check_gcp_nodes, [GCP]), (check_rayjob, [KUBERAY])],
)
def test_shipped_files_fit_their_readers_schemas(check: Callable[[Any], None], paths: list[Path]) -> None:
    for path in paths:
        check(load(path))


@pytest.mark.parametrize(
    ("path", "check", "old", "new"),
    [
        (AWS, check_ray, '"idle_timeout_minutes": 10', '"idle_timeout_minute": 10'),
        (GCP, check_ray, '"ssh_user"', '"ssh_usr"'),
        (AWS, check_aws_nodes, '"Encrypted"', '"Encripted"'),
        (AWS, check_aws_nodes, '"VolumeSize": 100', '"VolumeSize": "100 GB"'),
        (GCP, check_gcp_nodes, '"provisioningModel"', '"provisioningMode"'),
        (KUBERAY, check_rayjob, '"workerGroupSpecs"', '"workerGroupSpec"'),
        (KUBERAY, check_rayjob, '"mode": "token"', '"mode": "tokens"'),
        (KUBERAY, check_rayjob, '"memory": "16Gi"', '"memory": "16GiB"'),
        (KUBERAY, check_rayjob, '"terminationGracePeriodSeconds": 30', '"terminationGracePeriodSeconds": "30"'),
    ],
)  # fmt: skip
def test_a_planted_typo_is_caught(path: Path, check: Callable[[Any], None], old: str, new: str) -> None:
    text = json.dumps(load(path))
    assert old in text
    word = new.split('"')[1]
    with pytest.raises((AssertionError, jsonschema.ValidationError), match=word):
        check(json.loads(text.replace(old, new)))


@pytest.mark.parametrize("path", RAY_FILES, ids=lambda p: p.stem)
def test_nothing_is_open_and_nodes_share_a_token(path: Path) -> None:
    config = load(path)
    commands = "\n".join(config["head_start_ray_commands"] + config["worker_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in commands
    assert "0.0.0.0" not in path.read_text(encoding="utf-8")
    assert any("RAY_AUTH_MODE=token" in line for line in config["setup_commands"])
    assert all(". ~/search.env" in line for line in commands.splitlines())
    assert "~/.ray/auth_token" in config["file_mounts"]
    types = config.get("available_node_types", {}).values()
    assert config["max_workers"] >= max((t.get("max_workers", 0) for t in types), default=0)


def test_aws_workers_are_spot_and_the_head_runs_no_trial() -> None:
    config = load(AWS)
    worker, head = config["available_node_types"]["gpu_spot"], config["available_node_types"]["head"]
    assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert worker["min_workers"] == 0
    assert config["idle_timeout_minutes"] <= 15
    assert head["resources"] == {"CPU": 0}
    assert "InstanceMarketOptions" not in head["node_config"]
    assert config["provider"]["security_group"]  # else Ray opens port 22 to the world


def locked() -> dict[str, set[str]]:
    """Package -> its versions in the lock (several where they depend on Python or platform)."""
    pins: dict[str, set[str]] = {}
    for line in (ROOT / "cluster.lock").read_text(encoding="utf-8").splitlines():
        if line and not line.lstrip().startswith("#"):
            name, version = line.partition(";")[0].strip().split("==")
            pins.setdefault(name, set()).add(version)
    return pins


def test_the_lock_satisfies_the_dependencies() -> None:
    """It has each dependency that cluster files and image install, within its bounds. On failure remake it as its head
    describes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in ("cluster", "sda", "lora", "gpu") for line in extras[name])]
    pins = locked()
    for requirement in map(Requirement, wanted):
        versions = pins[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), requirement


def test_one_ray_and_one_python_everywhere() -> None:
    """Ray compares its version exactly between nodes, and Python's to the patch."""
    (ray,) = locked()["ray"]
    assert load(KUBERAY)["spec"]["rayClusterSpec"]["rayVersion"] == ray
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    texts = [path.read_text(encoding="utf-8") for path in (AWS, GCP)] + [image]
    pythons = {version for text in texts for version in re.findall(r"python(3\.\d+)", text)}
    assert len(pythons) == 1
    for path in (AWS, GCP, ONPREM):
        installs = [line for line in load(path)["setup_commands"] if "pip install" in line]
        assert all('-c "$HOME/project/cluster.lock"' in line for line in installs if "project[" in line), path
        assert any("project[" in line for line in installs), path
    assert "pip install --no-cache-dir -r project/cluster.lock" in image
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    images = re.findall(
        r"\S+/search:([\w.]+)", KUBERAY.read_text(encoding="utf-8") + DOCKER.read_text(encoding="utf-8")
    )
    assert set(images) == {version}


def test_kuberay_lets_the_study_use_all_its_workers() -> None:
    """The driver there does not see how far the cluster can grow."""
    manifest = load(KUBERAY)["spec"]
    (workers,) = manifest["rayClusterSpec"]["workerGroupSpecs"]
    assert f"search.concurrent={workers['maxReplicas']}" in manifest["entrypoint"]


def test_the_docker_file_is_cluster_yaml_with_an_image() -> None:
    plain, docker = load(AWS), load(DOCKER)
    assert docker.pop("docker")["container_name"] == "search"
    assert docker.pop("setup_commands") == plain.pop("setup_commands")[2:], "no environment is made on a node"
    for config in (plain, docker):
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            config[key] = [line.replace(" ulimit -n 65536;", "") for line in config[key]]
    assert docker == plain


def test_the_image_runs_as_no_root_and_carries_no_keys() -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    user = image.index("\nUSER ubuntu\n")
    assert all("--chown=ubuntu:ubuntu" in line for line in image.splitlines() if line.startswith("COPY"))
    assert "USER" not in image[user + 6 :]
    assert "pip install" not in image[:user]
    ignored = {line.strip("*/") for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()}
    keys = (ROOT / ".gitignore").read_text(encoding="utf-8").partition("# keys")[2].splitlines()[1:]
    assert {line.strip("*/") for line in keys} <= ignored


@pytest.mark.parametrize(
    ("there", "called"),
    [
        ("", "run /space/space.yaml --name simcse_unsup --set search.concurrent=8"),
        ("other,1", "run /space/space.yaml --name simcse_unsup --set search.concurrent=8"),
        ("other,1\nsimcse_unsup,2", "resume simcse_unsup"),
    ],
)
def test_kuberays_entrypoint_survives_two_shells_and_resumes(tmp_path: Path, there: str, called: str) -> None:
    """KubeRay pastes the entrypoint after `ray job submit --` in a shell; Ray quotes it for another on the head."""
    (tmp_path / "studies.csv").write_text(f"study,method\n{there}\n")
    search = tmp_path / "search"
    search.write_text('#!/bin/sh\ncd "${0%/*}"; [ "$1" = list ] && exec cat studies.csv; echo "$@" > called; exit 7\n')
    search.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    submit = "import subprocess, sys; sys.exit(subprocess.call(subprocess.list2cmdline(sys.argv[1:]), shell=True))"
    submitter = f"{sys.executable} -c {shlex.quote(submit)} {load(KUBERAY)['spec']['entrypoint']} ;"
    done = subprocess.run(["/bin/bash", "-ce", submitter], env=env, check=False)
    assert (tmp_path / "called").read_text().strip() == called
    assert done.returncode == 7, "the search's exit code is the job's"
