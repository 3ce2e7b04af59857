"""What schemathesis must know of netmaster beside its OpenAPI document.

Requests get past the first check (the key is made of the body's members), name things that may be there, and ask for
problems now and then. A failure is either the original's, status 500 with one line of text, or a problem.
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
        members = known(case)
        for n, (name, values) in enumerate(NAMES.items()):
            throw = dice[n % 28] + n
            if name in members and (name in case.body or dice[0] % 2) and (dice[0] % 8 or throw % 4):
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
    if dice[31] % 3 == 0:
        case.headers = {**(case.headers or {}), "Accept": "application/problem+json"}


def known(case):
    """The members that the operation's body may have."""
    content = case.operation.definition.raw.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    while "$ref" in schema:
        schema = case.operation.schema.raw_schema["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema.get("properties", {})


ANSWERS = collections.Counter()


@atexit.register
def tell():
    """What was answered to what, for the test to see that requests came through."""
    if path := os.environ.get("ANSWERS"):
        with open(path, "w") as file:
            json.dump([[*key, n] for key, n in sorted(ANSWERS.items())], file)


@schemathesis.check
def failures_are_told(ctx, response, case):
    ANSWERS[case.method, case.path, response.status_code] += 1
    if response.status_code < 400:
        return
    kind = response.headers.get("content-type", [""])[0]
    text = response.text
    if kind == "application/problem+json":
        problem = json.loads(text)
        assert problem["status"] == response.status_code, f"{response.status_code}, and the problem says {text}"
        assert problem["detail"].strip() and "\n" not in problem["detail"], text
        return
    # Without a word: what is no HTTP is refused before it is read.
    if response.status_code in (400, 414, 431) and not text:
        return
    assert kind == "text/plain; charset=utf-8", f"{response.status_code} {kind}: {text!r}"
    assert response.status_code in (404, 500), f"{response.status_code} {text!r}"
    assert text.endswith("\n") and text.count("\n") == 1 and text.strip(), f"not one line: {text!r}"
