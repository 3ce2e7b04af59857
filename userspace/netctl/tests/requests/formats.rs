//! Output formats of lists and objects.

use serde_json::{Value, json};

use crate::{
    netctl, read, run,
    server::{Reply, Request, Server},
};

fn endpoint(id: &str, name: &str) -> Value {
    json!({"containerID": format!("c-{id}"), "containerName": name, "endpointID": id, "homingHost": "h1",
        "ipAddress": ["10.1.1.1", ""], "network": "n.default", "serviceName": "web", "macAddress": "02:02:0a:01:01:01",
        "virtualPort": "v1"})
}

fn node(host: &str, state: &str) -> Value {
    json!({"state": state, "registered": true, "controlIP": "192.0.2.1", "host": host, "datapath": "ebpf",
        "vtepIP": "10.0.0.1", "vxlanPort": 4789, "version": "0.1.0", "ready": true, "appliedRevision": 7, "failed": 2,
        "degraded": []})
}

fn answer(request: &Request) -> Reply {
    match request.line.as_str() {
        "GET /api/v1/networks/" => Reply::json(&json!([
            {"key": "default:b", "networkName": "b", "tenantName": "default", "encap": "vlan", "pktTag": 7,
                "subnet": "10.2.0.0/16"},
            {"key": "default:a", "networkName": "a", "tenantName": "default", "encap": "vxlan", "subnet": "10.1.0.0/16"},
        ])),
        "GET /api/v1/endpointGroups/" => Reply::json(&json!([
            {"key": "default:日本", "groupName": "日本", "tenantName": "default", "networkName": "a", "policies": ["p", "q"]},
            {"key": "default:e", "groupName": "e", "tenantName": "default", "networkName": "a",
                "extContractsGrps": ["c"]},
        ])),
        "GET /api/v1/rules/" => Reply::json(&json!([
            {"key": "default:p:1", "tenantName": "default", "policyName": "p", "ruleId": "1", "direction": "in",
                "action": "deny", "toIpAddress": "10.9.0.0/16"},
        ])),
        "GET /api/v1/inspect/networks/default:a/" => {
            Reply::json(&json!({"Config": {}, "Oper": {"pktTag": 3, "endpoints": [endpoint("e2", "web-2")]}}))
        }
        line if line.starts_with("GET /api/v1/inspect/networks/") => {
            Reply::json(&json!({"Config": {}, "Oper": {"endpoints": [endpoint("e1", "web-1")]}}))
        }
        // netmaster finds parts of names.
        "GET /api/v1/inspect/endpoints/e1/" | "GET /api/v1/inspect/endpoints/web/" => {
            Reply::json(&json!({"Oper": endpoint("e1", "web-1")}))
        }
        "GET /api/v1/inspect/endpoints/x/" => Reply::refused("endpoint not found"),
        "GET /api/v1/inspect/nodes/" => Reply::json(&json!([node("h1", "ready"), node("h2", "gone")])),
        _ => Reply::json(&json!({})),
    }
}

#[test]
fn lists_have_all_formats() {
    let server = Server::start(answer);
    for (line, expected) in [
        ("net ls -o jsonpath=$[*].subnet", "10.1.0.0/16\n10.2.0.0/16\n"),
        ("net ls -o jsonpath={[*].networkName}", "a b\n"),
        ("net ls -o jsonpath=$[?@.encap_==_'vlan'].pktTag", "7\n"),
        ("net ls -o=jsonpath={[0].networkName}={[0].subnet}", "a=10.1.0.0/16\n"),
        (
            "net ls -o custom-columns=NAME:.networkName,TAG:.pktTag",
            "NAME  TAG\n----  ---\na     <none>\nb     7\n",
        ),
        ("net inspect a -o jsonpath=.Oper.pktTag", "3\n"),
        (
            "group ls -o wide",
            "tenantName  groupName  networkName  ipPool  policies  netProfile  extContractsGrps  cfgdTag\n\
             ----------  ---------  -----------  ------  --------  ----------  ----------------  -------\n\
             default     e          a                                          c                 \n\
             default     日本       a                    p,q                                     \n",
        ),
        (
            "policy rule-ls p -o custom-columns=ID:.ruleId,TO:.toIpAddress",
            "ID  TO\n--  --\n1   10.9.0.0/16\n",
        ),
        ("get net b -o jsonpath=.subnet", ""),
        ("get endpoints -o name", "endpoint/e1\nendpoint/e2\n"),
        ("get ep -a -o jsonpath=[*].endpointID", "e1\ne2\n"),
        ("get endpoint e1 -o jsonpath=.ipAddress[0]", "10.1.1.1\n"),
        (
            "get ep e1",
            "Network    Endpoint  Name   Group  Node  IPv4      IPv6\n\
             -------    --------  ----   -----  ----  ----      ----\n\
             n.default  e1        web-1  web    h1    10.1.1.1  \n",
        ),
        (
            "get ep e1 -o wide",
            "Network    Endpoint  Name   Group  Node  IPv4      IPv6  Container  MAC                Port  VTEP  Labels\n\
             -------    --------  ----   -----  ----  ----      ----  ---------  ---                ----  ----  ------\n\
             n.default  e1        web-1  web    h1    10.1.1.1        c-e1       02:02:0a:01:01:01  v1          \n",
        ),
        ("get nodes -o name", "node/h1\nnode/h2\n"),
        ("get node h2 -o jsonpath={.state}", "gone\n"),
        (
            "get nodes -o wide",
            "Host  Datapath  State  Revision  VTEP      Version  Control IP  VXLAN port  Failed  Gone since  Reason\n\
             ----  --------  -----  --------  ----      -------  ----------  ----------  ------  ----------  ------\n\
             h1    ebpf      ready  7         10.0.0.1  0.1.0    192.0.2.1   4789        2                   2 objects failed\n\
             h2    ebpf      gone   7         10.0.0.1  0.1.0    192.0.2.1   4789        2                   2 objects failed\n",
        ),
    ] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (stdout, stderr, code) = run(&server, &words);
        assert_eq!((stdout.as_str(), stderr.as_str(), code), (expected, "", 0), "{line}");
    }
    let (stdout, ..) = run(&server, &["get", "node", "h1", "-o", "json"]);
    let printed: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&printed["kind"], &printed["appliedRevision"]), (&json!("node"), &json!(7)));
    for (line, text, code) in [
        ("get endpoint web", "endpoint not found", 3),
        ("get endpoint x", "endpoint not found", 3),
        ("get node h3", "node not found", 3),
        ("get thing", "get thing: expected all, global", 1),
        ("net ls -o jsonpath=$[", "JSONPath $[", 1),
        ("net ls -o custom-columns=NAME", "expected TITLE:QUERY", 1),
        ("net ls -o xml", "expected table, wide, json", 1),
        ("net ls -o wide -q", "cannot be used with", 1),
    ] {
        let (stdout, stderr, got) = run(&server, &line.split(' ').collect::<Vec<_>>());
        assert!(stdout.is_empty() && stderr.contains(text), "{line}: {stderr}");
        assert_eq!(got, code, "{line}");
    }
}

#[test]
fn colours_are_for_terminals() {
    let server = Server::start(answer);
    let run = |variables: &[(&str, &str)]| {
        let mut command = netctl(&server.url(), &["node", "ls"]);
        let (stdout, stderr, code) = read(&command.envs(variables.iter().copied()).output().unwrap());
        assert_eq!((stderr.as_str(), code), ("", 0));
        stdout
    };
    let plain = run(&[]);
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let coloured = run(&[("CLICOLOR_FORCE", "1")]);
    assert!(
        coloured.contains("\u{1b}[32mready\u{1b}[0m") && coloured.contains("\u{1b}[31mgone"),
        "{coloured:?}"
    );
    // Colours do not shift the columns.
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), plain);
    assert_eq!(run(&[("NO_COLOR", "1")]), plain);
}
