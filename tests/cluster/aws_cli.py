"""`aws SERVICE OPERATION --options` by botocore: unknown operations and parameters fail as they do there, the call goes
to AWS_ENDPOINT_URL. Structures are given as JSON, as the documents do; of the shorthands none is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import botocore.session
import botocore.validate
import jmespath
from botocore import xform_name

# What moto does not play: the parameters are checked, this is the answer.
NOT_SIMULATED = {"ssm": {"Parameter": {"Value": "ami-0a1b2c3d4e5f60718"}}, "service-quotas": {}}


def value(text: str, shape: Any) -> Any:
    if text.startswith("file://"):
        text = Path(text.removeprefix("file://")).read_text(encoding="utf-8")
    if shape.type_name in ("structure", "list", "map"):
        return json.loads(text)
    return {"integer": int, "long": int, "double": float, "float": float}.get(shape.type_name, str)(text)


def main(words: list[str]) -> None:
    service, operation, *options = words
    client = botocore.session.get_session().create_client(service.removesuffix("api"))
    api = client.meta.method_to_api_mapping[operation.replace("-", "_")]
    members = {
        xform_name(n, "-"): (n, s)
        for n, s in client.meta.service_model.operation_model(api).input_shape.members.items()
    }
    given: dict[str, Any] = {}
    how = {"query": "@", "output": "json"}
    for name, text in zip(options[::2], options[1::2], strict=True):
        option = name.removeprefix("--")
        if option in how:
            how[option] = text
        else:
            member, shape = members[option]
            given[member] = value(text, shape)
    if service in NOT_SIMULATED:
        shape = client.meta.service_model.operation_model(api).input_shape
        botocore.validate.validate_parameters(given, shape)
        answer: Any = NOT_SIMULATED[service]
    else:
        answer = getattr(client, operation.replace("-", "_"))(**given)
    found = jmespath.search(how["query"], answer)
    print(found if how["output"] == "text" else json.dumps(found, default=str))


if __name__ == "__main__":
    main(sys.argv[1:])
