"""Ray's node provider for the test cloud: what its AWS provider is to EC2."""

from __future__ import annotations

from typing import Any

from minicloud import call
from ray.autoscaler.node_provider import NodeProvider


class MiniCloudNodeProvider(NodeProvider):
    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._seen: dict[str, Any] = {}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return [
            name
            for name, node in self._list().items()
            if node["state"] == "running" and tag_filters.items() <= node["tags"].items()
        ]

    def is_running(self, node_id: str) -> bool:
        return bool(self._list()[node_id]["state"] == "running")

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        return dict(self._list()[node_id]["tags"])

    def external_ip(self, node_id: str) -> str:
        return str((self._seen.get(node_id) or self._list()[node_id])["ip"])

    internal_ip = external_ip

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:  # noqa: ARG002  # Ray's interface
        made: dict[str, Any] = call("create", tags={**tags, "ray-cluster-name": self.cluster_name}, count=count)
        return made

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        call("set_tags", name=node_id, tags=tags)

    def terminate_node(self, node_id: str) -> None:
        call("terminate", name=node_id)

    def _list(self) -> dict[str, Any]:
        nodes = call("ls").items()
        self._seen = {name: n for name, n in nodes if n["tags"].get("ray-cluster-name") == self.cluster_name}
        return self._seen
