//! Results of several plugins that serve one attachment.

use serde_json::{Map, Value};

use super::{Code, Error};
use crate::wire::ListedInterface;

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

/// Whether a result has the interface in a container.
fn is_inside(interface: &Value) -> bool {
    interface["sandbox"].as_str().is_some_and(|path| !path.is_empty())
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

/// How the result of ADD differs from the attachment as it is now; `None` if it does not. Interfaces that it does not list are not
/// demanded, and the agent compares the one in the container: later plugins may have changed both.
///
/// # Errors
///
/// Fails if `prev` is not an object.
pub(crate) fn difference(prev: &Value, own: &str) -> Result<Option<String>, Error> {
    object(prev)?;
    let own = parse(own)?;
    let same = |field: &str, a: &Value, b: &Value| {
        let known = |value: &Value| !value.is_null() && value.as_str() != Some("");
        !known(&a[field]) || !known(&b[field]) || a[field] == b[field]
    };
    for interface in list(&own, "interfaces").iter().filter(|one| !is_inside(one)) {
        let is_listed = |other: &&Value| other["name"] == interface["name"] && !is_inside(other);
        let is_other = |other: &Value| !["mac", "mtu"].iter().all(|field| same(field, interface, other));
        if list(prev, "interfaces").iter().find(is_listed).is_some_and(is_other) {
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

/// What a result lists of the interface with this name in the container.
pub(crate) fn listed_interface(result: &Value, name: &str) -> ListedInterface {
    let found = list(result, "interfaces").iter().find(|one| one["name"] == name && is_inside(one));
    let Some(interface) = found else { return ListedInterface::default() };
    ListedInterface {
        mac: interface["mac"].as_str().unwrap_or_default().to_owned(),
        mtu: interface["mtu"].as_u64().and_then(|mtu| u32::try_from(mtu).ok()).unwrap_or_default(),
    }
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
        assert_eq!(difference(&prev, OWN).unwrap(), None);
        for (from, to, what) in
            [(r#""mac":"a""#, r#""mac":"c""#, "vvport1"), ("10.0.0.1/24", "10.0.0.2/24", "10.0.0.1/24")]
        {
            let other = parse(&OWN.replace(from, to)).unwrap();
            assert!(difference(&other, OWN).unwrap().unwrap().contains(what), "{what}");
        }
        // An address that is not listed is no difference, nor is another interface, or what later plugins change in the container.
        for (from, to) in [
            (r#","mac":"a""#, ""),
            ("vvport1", "vvport2"),
            (r#""mac":"b""#, r#""mac":"c""#),
            ("1450", "1400"),
        ] {
            let other = parse(&OWN.replace(from, to)).unwrap();
            assert_eq!(difference(&other, OWN).unwrap(), None, "{to}");
        }
    }

    #[test]
    fn interface_in_the_container_is_found_by_its_name() {
        let listed = |text: &str, name: &str| listed_interface(&parse(text).unwrap(), name);
        assert_eq!(listed(OWN, "eth0"), ListedInterface { mac: "b".into(), mtu: 1450 });
        let older = OWN.replace(r#","mtu":1450"#, "");
        assert_eq!(listed(&older, "eth0"), ListedInterface { mac: "b".into(), mtu: 0 });
        // The node may have an interface of that name.
        for name in ["vvport1", "net1"] {
            assert_eq!(listed(OWN, name), ListedInterface::default());
        }
        assert_eq!(listed("{}", "eth0"), ListedInterface::default());
    }
}
