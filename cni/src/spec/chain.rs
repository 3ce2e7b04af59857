//! Results of several plugins that serve one attachment.

use serde_json::{Map, Value};

use super::{Code, Error};

/// The members of a `prevResult`.
///
/// # Errors
///
/// Fails if it is not an object.
pub(crate) fn object(result: &Value) -> Result<&Map<String, Value>, Error> {
    result
        .as_object()
        .ok_or_else(|| Error::new(Code::Decode, "prevResult of the network configuration is not an object"))
}

fn parse(own: &str) -> Result<Value, Error> {
    serde_json::from_str(own).map_err(|e| Error::new(Code::Io, "read the result").details(e.to_string()))
}

fn list<'a>(result: &'a Value, field: &str) -> &'a [Value] {
    result[field].as_array().map_or(&[], Vec::as_slice)
}

/// The result of the chain: that of the previous plugins and, after it, the plugin's `own`. Other fields are passed on.
///
/// # Errors
///
/// Fails if `prev` is not an object.
pub(crate) fn append(prev: &Value, own: &str) -> Result<String, Error> {
    let (mut chain, mut own) = (object(prev)?.clone(), parse(own)?);
    let first = list(prev, "interfaces").len();
    for ip in own["ips"].as_array_mut().into_iter().flatten() {
        if let Some(index) = ip["interface"].as_u64() {
            ip["interface"] = Value::from(index + first as u64);
        }
    }
    for field in ["interfaces", "ips", "routes"] {
        let earlier = list(prev, field);
        let added = list(&own, field).iter().filter(|item| field != "routes" || !earlier.contains(item));
        let all: Vec<Value> = earlier.iter().chain(added).cloned().collect();
        if !all.is_empty() {
            chain.insert(field.to_owned(), all.into());
        }
    }
    if own["dns"].as_object().is_some_and(|dns| !dns.is_empty()) || !chain.contains_key("dns") {
        chain.insert("dns".to_owned(), own["dns"].take());
    }
    chain.insert("cniVersion".to_owned(), own["cniVersion"].take());
    serde_json::to_string_pretty(&chain)
        .map_err(|e| Error::new(Code::Io, "write the result").details(e.to_string()))
}

/// What the result of ADD lacks of the attachment as it is now; `None` if it lacks nothing.
///
/// # Errors
///
/// Fails if `prev` is not an object.
pub(crate) fn missing(prev: &Value, own: &str) -> Result<Option<String>, Error> {
    object(prev)?;
    let own = parse(own)?;
    let same = |field: &str, a: &Value, b: &Value| {
        let known = |value: &Value| !value.is_null() && value.as_str() != Some("");
        !known(&a[field]) || !known(&b[field]) || a[field] == b[field]
    };
    for interface in list(&own, "interfaces") {
        let is_same = |other: &&Value| {
            let inside = |one: &Value| one["sandbox"].as_str().is_some_and(|path| !path.is_empty());
            other["name"] == interface["name"]
                && inside(other) == inside(interface)
                && ["mac", "mtu"].iter().all(|field| same(field, interface, other))
        };
        if !list(prev, "interfaces").iter().any(|other| is_same(&other)) {
            return Ok(Some(format!("interface {interface}")));
        }
    }
    for ip in list(&own, "ips") {
        if !list(prev, "ips").iter().any(|other| other["address"] == ip["address"]) {
            return Ok(Some(format!("address {}", ip["address"])));
        }
    }
    Ok(None)
}

/// Whether a result has the default routes of IPv4 and IPv6.
pub(crate) fn default_routes(result: &Value) -> [bool; 2] {
    ["0.0.0.0/0", "::/0"].map(|all| list(result, "routes").iter().any(|route| route["dst"] == all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"vvport1","mac":"a"},
        {"name":"eth0","mac":"b","mtu":1450,"sandbox":"/run/netns/x"}],
        "ips":[{"interface":1,"address":"10.0.0.1/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.254"}],"dns":{}}"#;

    #[test]
    fn own_result_follows_that_of_the_previous_plugins() {
        let prev = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"net0","sandbox":"/run/netns/x"}],
            "ips":[{"interface":1,"address":"10.1.0.1/24"}],"dns":{"domain":"d"},"other":7}"#;
        let chain = append(&parse(prev).unwrap(), OWN).unwrap();
        let chain: Value = serde_json::from_str(&chain).unwrap();
        let names: Vec<_> =
            list(&chain, "interfaces").iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["br0", "net0", "vvport1", "eth0"]);
        let at: Vec<_> = list(&chain, "ips").iter().map(|one| one["interface"].as_u64().unwrap()).collect();
        assert_eq!(at, [1, 3]);
        assert_eq!((chain["dns"]["domain"].as_str(), chain["other"].as_u64()), (Some("d"), Some(7)));
        assert_eq!(list(&chain, "routes").len(), 1);
        assert_eq!(append(&Value::from(1), OWN).unwrap_err().code, Code::Decode);
    }

    #[test]
    fn differences_from_the_result_of_add_are_named() {
        let prev = parse(OWN).unwrap();
        assert_eq!(missing(&prev, OWN).unwrap(), None);
        for (from, to, what) in [
            ("vvport1", "vvport2", "vvport1"),
            (r#""mac":"b""#, r#""mac":"c""#, "eth0"),
            ("1450", "1500", "eth0"),
            ("10.0.0.1/24", "10.0.0.2/24", "10.0.0.1/24"),
        ] {
            let other = parse(&OWN.replace(from, to)).unwrap();
            assert!(missing(&other, OWN).unwrap().unwrap().contains(what), "{what}");
        }
        // An unknown MTU or address of earlier versions is no difference.
        let older = parse(&OWN.replace(r#","mtu":1450"#, "")).unwrap();
        assert_eq!(missing(&older, OWN).unwrap(), None);
    }
}
