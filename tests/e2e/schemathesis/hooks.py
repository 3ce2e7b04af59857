"""schemathesis hooks for netmaster: information that the OpenAPI document does not have.

Requests pass the first check (the key consists of fields of the body), reference objects that may exist, and sometimes
accept problem details (RFC 9457). An error is either status 500 with one line of text, as in the original, or a problem.
"""

import atexit
import collections
import hashlib
import json
import os

import schemathesis

NAMES = {
    "tenantName": ["default", "t1"],
    "networkName": ["n1", "n2"],
    "groupName": ["g1", "g2"],
    "policyName": ["p1", "p2"],
    "profileName": ["x1"],
    "ruleId": ["1", "2"],
    "encap": ["vlan", "vxlan"],
    "subnet": ["10.1.0.0/24", "10.2.0.0/16", "10.3.0.0/30"],
    "nwType": ["data"],
    "policies": [[], ["p1"], [], ["p1", "p2"]],
    "netProfile": ["", "", "x1"],
    "serviceName": ["s1", "s2"],
    "ports": [["80:8080:TCP"], ["53:53:UDP", "80:80:tcp"]],
    "selectors": [["app=web"], ["app=web", "tier=1"]],
    "ipAddress": ["", "10.1.0.200"],
    "appProfileName": ["a1"],
    "endpointGroups": [["g1"], []],
    "contractsGroupName": ["c1"],
    "contractsType": ["provided", "consumed"],
    "volumeName": ["v1"],
    "volumeProfileName": ["v1"],
    "Tenant": ["default"],
    "Network": ["n1"],
    "Event": ["start", "die"],
    "ContainerID": ["c1"],
    "vlans": ["1-4094", "1-2000"],
    "vxlans": ["1-10000"],
    "fwdMode": ["bridge"],
    "pktTag": [0],
    "gateway": ["", "10.1.0.254"],
    "ipv6Subnet": ["", "2001:db8::/64"],
    "ipv6Gateway": [""],
    "cfgdTag": ["", "tag"],
    "ipPool": ["", "10.1.0.10-10.1.0.20"],
    "extContractsGrps": [[]],
    "TenantName": ["default", "t1"],
    "NetworkName": ["n1", "n2"],
    "NetworkID": ["n1.default", "g1:default", "n2.t1"],
    "EndpointID": ["c1", "c2"],
    "ModRevision": [None],
}


PARAMETERS = {"tenant": ["default"], "kind": ["ep"], "name": ["c1", "c2"], "id": ["s1:default"]}
KEYS = {
    "aciGws": "aciGw",
    "appProfiles": "default:a1",
    "Bgps": "web",
    "endpointGroups": "default:g1",
    "extContractsGroups": "default:c1",
    "globals": "global",
    "netprofiles": "default:x1",
    "networks": "default:n1",
    "policys": "default:p1",
    "rules": "default:p1:1",
    "serviceLBs": "default:s1",
    "tenants": "t1",
}


@schemathesis.hook
def before_call(context, case, kwargs):
    raw = case.operation.definition.raw
    dice = hashlib.sha256(repr((case.path, case.method, case.path_parameters, case.body)).encode()).digest()
    if isinstance(case.body, dict) and dice[0] % 4:
        fields = fields_of(case)
        for n, (name, values) in enumerate(NAMES.items()):
            throw = dice[n % 28] + n
            if name in fields and (name in case.body or dice[0] % 2) and (dice[0] % 8 or throw % 4):
                case.body[name] = values[throw % len(values)]
    if "x-key" in raw and isinstance(case.body, dict) and dice[30] % 8:
        parts = [case.body.get(part) for part in raw["x-key"]]
        if all(isinstance(part, str) and part for part in parts):
            case.path_parameters = {**(case.path_parameters or {}), "key": ":".join(parts)}
    elif "key" in (case.path_parameters or {}) and dice[30] % 2 and not (case.method == "DELETE" and "global" in case.path):
        for plural, key in KEYS.items():
            if f"/{plural}/" in case.path:
                case.path_parameters = {"key": key}
    for name, values in PARAMETERS.items():
        if name in (case.path_parameters or {}) and dice[29] % 2:
            case.path_parameters = {**case.path_parameters, name: values[dice[28] % len(values)]}
    # Most changes are carried out.
    if dice[27] % 4:
        case.query = {name: value for name, value in (case.query or {}).items() if name != "dryRun"}
        conditions = ("if-match", "if-none-match")
        case.headers = {name: value for name, value in (case.headers or {}).items() if name.lower() not in conditions}
    if dice[31] % 3 == 0:
        case.headers = {**(case.headers or {}), "Accept": "application/problem+json"}


def fields_of(case):
    """Fields that the body of the operation may have."""
    content = case.operation.definition.raw.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    while "$ref" in schema:
        schema = case.operation.schema.raw_schema["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema.get("properties", {})


RESPONSES = collections.Counter()


@atexit.register
def write_responses():
    """Writes the number of responses by method, path and status, which the test evaluates."""
    if path := os.environ.get("RESPONSES"):
        with open(path, "w") as file:
            json.dump([[*key, n] for key, n in sorted(RESPONSES.items())], file)


@schemathesis.check
def errors_have_text(ctx, response, case):
    RESPONSES[case.method, case.path, response.status_code] += 1
    if response.status_code < 400:
        return
    kind = response.headers.get("content-type", [""])[0]
    text = response.text
    if kind == "application/problem+json":
        problem = json.loads(text)
        assert problem["status"] == response.status_code, f"status {response.status_code} differs from the problem: {text}"
        assert problem["detail"].strip() and "\n" not in problem["detail"], text
        return
    # No text: invalid HTTP is rejected before the request is read.
    if response.status_code in (400, 414, 431) and not text:
        return
    assert kind == "text/plain; charset=utf-8", f"{response.status_code} {kind}: {text!r}"
    assert response.status_code in (404, 412, 500), f"{response.status_code} {text!r}"
    assert text.endswith("\n") and text.count("\n") == 1 and text.strip(), f"expected one line: {text!r}"
