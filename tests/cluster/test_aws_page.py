"""docs/cluster/aws.md: its commands, as they stand, against a simulated AWS; then Ray prepares its cluster there.

pytest -m slow tests/cluster/test_aws_page.py      # half a minute; what needs no AWS is in the ordinary suite
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
import yaml
from moto.iam.policy_validation import IAMPolicyDocumentValidator
from moto.server import ThreadedMotoServer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "cluster"
POLICIES = [DOCS / "aws" / f"{name}.json" for name in ("storage", "nodes")]
NOT_OPERATIONS = {"s3:ListBucket", "iam:PassRole"}  # permissions that no operation is called after


def commands(name: str) -> str:
    """The bash of a page."""
    return "\n".join(
        re.findall(r"^```bash\n(.*?)^```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project's folder after all commands of the page but those that take it away; boto3 finds what they made."""
    folder = tmp_path_factory.mktemp("aws")
    shutil.copy(ROOT / "cluster.yaml", folder)
    shutil.copytree(DOCS, folder / "docs" / "cluster")
    tools, home = folder / "bin", folder / "home"
    tools.mkdir()
    (home / ".ssh").mkdir(parents=True)
    here = Path(sys.executable).parent
    scripts = {
        "aws": f'exec {sys.executable} {Path(__file__).with_name("aws_cli.py")} "$@"',
        "curl": "echo 203.0.113.7",
        "search": f'exec {here}/search "$@"',
    }
    for name, line in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    own = {
        "HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}", "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-west-2",
        "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, text in own.items():
            patch.setenv(name, text)
        script = commands("aws.md").split("ray down")[0]
        script = script.replace(
            "search cluster check",
            f"sed -i s/python3.12/python3.{sys.version_info.minor}/g cluster.yaml; search cluster check",
        )
        done = subprocess.run(["bash", "-eu", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("cluster.yaml: complete\n")
        patch.chdir(folder)
        yield folder
    server.stop()


def config(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "cluster.yaml").read_text()))


@pytest.mark.slow
def test_the_group_allows_ssh_from_one_address_and_its_nodes(made: Path) -> None:
    name = config(made)["provider"]["security_group"]["GroupName"]
    (group,) = boto3.client("ec2").describe_security_groups(Filters=[{"Name": "group-name", "Values": [name]}])[
        "SecurityGroups"
    ]
    rules = {rule["IpProtocol"]: rule for rule in group["IpPermissions"]}
    assert set(rules) == {"tcp", "-1"}
    assert (rules["tcp"]["FromPort"], rules["tcp"]["ToPort"]) == (22, 22)
    assert [r["CidrIp"] for r in rules["tcp"]["IpRanges"]] == ["203.0.113.7/32"]
    assert rules["-1"]["IpRanges"] == []
    assert [pair["GroupId"] for pair in rules["-1"]["UserIdGroupPairs"]] == [group["GroupId"]]


@pytest.mark.slow
def test_the_named_profiles_hold_roles_with_the_policies(made: Path) -> None:
    iam = boto3.client("iam")
    wanted = {"head": {"storage", "nodes"}, "gpu_spot": {"storage"}}
    for kind, policies in wanted.items():
        name = config(made)["available_node_types"][kind]["node_config"]["IamInstanceProfile"]["Name"]
        (role,) = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
        assert set(iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]) == policies
        text = iam.get_role_policy(RoleName=role["RoleName"], PolicyName="storage")["PolicyDocument"]
        bucket = re.search(r"SEARCH_STORAGE=s3://([^/]+)/", (made / "cluster.yaml").read_text())
        assert bucket
        assert f"arn:aws:s3:::{bucket[1]}/*" in json.dumps(text)
        assert boto3.client("s3").get_public_access_block(Bucket=bucket[1])


@pytest.mark.slow
def test_ray_prepares_the_cluster_with_what_was_made(made: Path) -> None:
    """Ray's own step before it starts a head: it must find group, key and profiles, and make none of its own."""
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.util import prepare_config

    ec2, iam = boto3.client("ec2"), boto3.client("iam")
    (profiles, groups, keys) = (
        len(iam.list_instance_profiles()["InstanceProfiles"]),
        len(ec2.describe_security_groups()["SecurityGroups"]),
        len(ec2.describe_key_pairs()["KeyPairs"]),
    )
    ready = bootstrap_aws(prepare_config(config(made)))
    assert len(iam.list_instance_profiles()["InstanceProfiles"]) == profiles == 2
    assert len(ec2.describe_security_groups()["SecurityGroups"]) == groups
    assert len(ec2.describe_key_pairs()["KeyPairs"]) == keys == 1
    (group,) = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["search-ray"]}])[
        "SecurityGroups"
    ]
    for kind in ready["available_node_types"].values():
        assert kind["node_config"]["SecurityGroupIds"] == [group["GroupId"]]
        assert kind["node_config"]["IamInstanceProfile"]["Name"] in ("search-head", "search-worker")


@pytest.mark.parametrize("path", POLICIES, ids=lambda p: p.stem)
def test_policies_are_in_the_grammar_and_name_real_actions(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    IAMPolicyDocumentValidator(text).validate()
    session = botocore.session.get_session()
    renamed = {"s3": {"AbortMultipartUpload", "GetObject", "PutObject", "DeleteObject", "GetBucketLocation"}}
    for statement in json.loads(text)["Statement"]:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        for action in set(actions) - NOT_OPERATIONS:
            service, _, operation = action.partition(":")
            known = renamed.get(service, set()) | set(session.get_service_model(service).operation_names)
            assert operation in known, action


def test_the_head_may_do_what_rays_provider_calls() -> None:
    """Every EC2 call in the source of Ray's AWS provider, but those for stopped nodes, which the file does not keep."""
    from ray.autoscaler._private.aws import node_provider

    source = Path(node_provider.__file__).read_text(encoding="utf-8")
    called = set(
        re.findall(r"ec2(?:_fail_fast)?\.(?:meta\.client\.)?((?:describe|create|terminate|start|stop|run)_\w+)", source)
    )
    assert {"create_instances", "create_tags", "terminate_instances"} <= called
    assert yaml.safe_load((ROOT / "cluster.yaml").read_text())["provider"]["cache_stopped_nodes"] is False
    needed = {"".join(map(str.capitalize, name.split("_"))) for name in called - {"start_instances", "stop_instances"}}
    needed = {f"ec2:{'RunInstances' if name == 'CreateInstances' else name}" for name in needed}
    granted = re.findall(r'"(ec2:\w+)"', POLICIES[1].read_text(encoding="utf-8"))
    assert needed | {"ec2:DescribeInstances"} <= set(granted)
