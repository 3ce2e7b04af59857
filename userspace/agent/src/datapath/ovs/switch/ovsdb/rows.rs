//! Copy of the monitored tables (ovs-vswitchd.conf.db(5)).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::OPEN_VSWITCH;

/// Key of `other_config`.
const FLOW_RESTORE_WAIT: &str = "flow-restore-wait";

/// UUID of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Uuid(pub(crate) String);

/// Copy of the monitored tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Database {
    pub(crate) bridges: BTreeMap<Uuid, Bridge>,
    pub(crate) ports: BTreeMap<Uuid, Port>,
    pub(crate) interfaces: BTreeMap<Uuid, Interface>,
    pub(crate) qos: BTreeMap<Uuid, Qos>,
    pub(crate) queues: BTreeMap<Uuid, Queue>,
    /// Bridges that the root table references; the server deletes the others.
    pub(crate) root: BTreeSet<Uuid>,
    /// Rows of the datapaths by their type. The server deletes those that nothing references, and their zones and policies.
    pub(crate) datapaths: BTreeMap<String, Uuid>,
    pub(crate) tracking: BTreeMap<Uuid, Tracking>,
    pub(crate) zones: BTreeMap<Uuid, Zone>,
    /// Timeouts in seconds.
    pub(crate) timeout_policies: BTreeMap<Uuid, BTreeMap<String, i64>>,
    /// `cur_cfg`: the configuration that ovs-vswitchd has applied.
    pub(crate) current_configuration: i64,
    /// Whether `ovs-ctl restart` is still to put the flows back that it has saved (`other_config:flow-restore-wait`).
    pub(crate) restores_flows: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bridge {
    pub(crate) name: String,
    pub(crate) ports: BTreeSet<Uuid>,
    pub(crate) fail_mode: Option<String>,
    pub(crate) protocols: BTreeSet<String>,
    pub(crate) datapath_type: String,
    /// Whether ovs-vswitchd has created the bridge (`datapath_id` is set).
    pub(crate) created: bool,
    pub(crate) external_ids: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) interfaces: BTreeSet<Uuid>,
    pub(crate) tag: Option<i64>,
    pub(crate) vlan_mode: Option<String>,
    /// Whether the bridge sends no frames between this port and others with this flag.
    pub(crate) is_protected: bool,
    pub(crate) bond_mode: Option<String>,
    /// Ethernet address of the active member of a bond (`bond_active_slave`).
    pub(crate) active_member: Option<String>,
    pub(crate) lacp: Option<String>,
    pub(crate) qos: Option<Uuid>,
    pub(crate) other_config: BTreeMap<String, String>,
    pub(crate) external_ids: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// `type` column.
    pub(crate) interface_type: String,
    pub(crate) options: BTreeMap<String, String>,
    /// Ethernet address that the interface shall have.
    pub(crate) mac: Option<String>,
    /// Ethernet address that it has.
    pub(crate) mac_in_use: Option<String>,
    pub(crate) external_ids: BTreeMap<String, String>,
    /// OpenFlow port number; -1 if ovs-vswitchd could not open the interface.
    pub(crate) ofport: Option<i64>,
    /// Cause of the failure to open the interface.
    pub(crate) error: Option<String>,
    /// Whether the interface has current LACP information of its partner.
    pub(crate) lacp_current: bool,
    /// Rate in kilobits per second and burst in kilobits of what the switch receives; 0 without a limit.
    pub(crate) ingress_policing: (i64, i64),
}

/// Queueing of what a port sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Qos {
    /// `type` column.
    pub(crate) qos_type: String,
    pub(crate) other_config: BTreeMap<String, String>,
    pub(crate) external_ids: BTreeMap<String, String>,
    pub(crate) queues: BTreeMap<i64, Uuid>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    pub(crate) other_config: BTreeMap<String, String>,
    pub(crate) external_ids: BTreeMap<String, String>,
}

/// A row of the table `Datapath`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tracking {
    /// Zones by their number.
    pub(crate) zones: BTreeMap<i64, Uuid>,
    pub(crate) external_ids: BTreeMap<String, String>,
}

/// A zone of connection tracking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    pub(crate) timeout_policy: Option<Uuid>,
    pub(crate) external_ids: BTreeMap<String, String>,
}

impl Interface {
    /// Returns the OpenFlow port number, if ovs-vswitchd has opened the interface.
    pub(crate) fn number(&self) -> Option<u32> {
        self.ofport.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
    }
}

/// Returns the columns of the monitor request.
pub(crate) fn monitored() -> Value {
    json!({
        OPEN_VSWITCH: {"columns": ["bridges", "cur_cfg", "datapaths", "other_config"]},
        "Bridge": {"columns": [
            "name", "ports", "fail_mode", "protocols", "datapath_type", "datapath_id", "external_ids",
        ]},
        "Port": {"columns": [
            "name", "interfaces", "tag", "vlan_mode", "protected", "bond_mode", "bond_active_slave", "lacp", "qos",
            "other_config", "external_ids",
        ]},
        "Interface": {"columns": [
            "name", "type", "options", "mac", "mac_in_use", "external_ids", "ofport", "error",
            "lacp_current", "ingress_policing_rate", "ingress_policing_burst",
        ]},
        "QoS": {"columns": ["type", "other_config", "external_ids", "queues"]},
        "Queue": {"columns": ["other_config", "external_ids"]},
        "Datapath": {"columns": ["ct_zones", "external_ids"]},
        "CT_Zone": {"columns": ["timeout_policy", "external_ids"]},
        "CT_Timeout_Policy": {"columns": ["timeouts"]},
    })
}

impl Database {
    /// Returns the bridge with this name.
    pub(crate) fn bridge(&self, name: &str) -> Option<(&Uuid, &Bridge)> {
        self.bridges.iter().find(|(uuid, bridge)| bridge.name == name && self.root.contains(uuid))
    }

    /// Returns the ports of a bridge with their interfaces.
    pub(crate) fn ports_of<'a>(
        &'a self,
        bridge: &'a Bridge,
    ) -> impl Iterator<Item = (&'a Uuid, &'a Port, Vec<(&'a Uuid, &'a Interface)>)> {
        bridge.ports.iter().filter_map(|uuid| {
            let port = self.ports.get(uuid)?;
            let interfaces =
                port.interfaces.iter().filter_map(|uuid| Some((uuid, self.interfaces.get(uuid)?)));
            Some((uuid, port, interfaces.collect()))
        })
    }

    /// Applies an update of the monitor: the new contents of each row, or none for a deleted row.
    pub(crate) fn update(&mut self, updates: &Value) {
        let rows = |table: &str| updates[table].as_object().into_iter().flatten();
        for (_, change) in rows(OPEN_VSWITCH) {
            let row = &change["new"];
            if row.is_object() {
                self.root = uuids(&row["bridges"]);
                self.current_configuration = row["cur_cfg"].as_i64().unwrap_or_default();
                let other_config = pairs(&row["other_config"]);
                self.restores_flows =
                    other_config.get(FLOW_RESTORE_WAIT).is_some_and(|wait| wait.eq_ignore_ascii_case("true"));
                let datapaths = entries(&row["datapaths"]);
                self.datapaths = datapaths.filter_map(|(kind, row)| Some((text(kind), uuid(row)?))).collect();
            }
        }
        replace(&mut self.bridges, rows("Bridge"), Bridge::parse);
        replace(&mut self.ports, rows("Port"), Port::parse);
        replace(&mut self.interfaces, rows("Interface"), Interface::parse);
        replace(&mut self.qos, rows("QoS"), Qos::parse);
        replace(&mut self.queues, rows("Queue"), Queue::parse);
        replace(&mut self.tracking, rows("Datapath"), Tracking::parse);
        replace(&mut self.zones, rows("CT_Zone"), Zone::parse);
        let timeouts =
            |row: &Value| entries(&row["timeouts"]).map(|(key, time)| (text(key), number(time))).collect();
        replace(&mut self.timeout_policies, rows("CT_Timeout_Policy"), timeouts);
    }
}

fn replace<'a, T>(
    table: &mut BTreeMap<Uuid, T>,
    changes: impl Iterator<Item = (&'a String, &'a Value)>,
    parse: impl Fn(&Value) -> T,
) {
    for (uuid, change) in changes {
        let uuid = Uuid(uuid.clone());
        if change["new"].is_object() {
            table.insert(uuid, parse(&change["new"]));
        } else {
            table.remove(&uuid);
        }
    }
}

impl Bridge {
    fn parse(row: &Value) -> Bridge {
        Bridge {
            name: text(&row["name"]),
            ports: uuids(&row["ports"]),
            fail_mode: maybe_text(&row["fail_mode"]),
            protocols: items(&row["protocols"]).map(text).collect(),
            datapath_type: text(&row["datapath_type"]),
            created: maybe_text(&row["datapath_id"]).is_some(),
            external_ids: pairs(&row["external_ids"]),
        }
    }
}

impl Port {
    fn parse(row: &Value) -> Port {
        Port {
            name: text(&row["name"]),
            interfaces: uuids(&row["interfaces"]),
            tag: items(&row["tag"]).find_map(Value::as_i64),
            vlan_mode: maybe_text(&row["vlan_mode"]),
            is_protected: row["protected"].as_bool().unwrap_or_default(),
            bond_mode: maybe_text(&row["bond_mode"]),
            active_member: maybe_text(&row["bond_active_slave"]),
            lacp: maybe_text(&row["lacp"]),
            qos: uuids(&row["qos"]).into_iter().next(),
            other_config: pairs(&row["other_config"]),
            external_ids: pairs(&row["external_ids"]),
        }
    }
}

impl Interface {
    fn parse(row: &Value) -> Interface {
        Interface {
            name: text(&row["name"]),
            interface_type: text(&row["type"]),
            options: pairs(&row["options"]),
            mac: maybe_text(&row["mac"]),
            mac_in_use: maybe_text(&row["mac_in_use"]),
            external_ids: pairs(&row["external_ids"]),
            ofport: items(&row["ofport"]).find_map(Value::as_i64),
            error: maybe_text(&row["error"]),
            lacp_current: items(&row["lacp_current"]).any(|value| value == &Value::Bool(true)),
            ingress_policing: (number(&row["ingress_policing_rate"]), number(&row["ingress_policing_burst"])),
        }
    }
}

impl Qos {
    fn parse(row: &Value) -> Qos {
        let queues = entries(&row["queues"]).filter_map(|(queue, row)| Some((number(queue), uuid(row)?)));
        Qos {
            qos_type: text(&row["type"]),
            other_config: pairs(&row["other_config"]),
            external_ids: pairs(&row["external_ids"]),
            queues: queues.collect(),
        }
    }
}

impl Queue {
    fn parse(row: &Value) -> Queue {
        Queue { other_config: pairs(&row["other_config"]), external_ids: pairs(&row["external_ids"]) }
    }
}

impl Tracking {
    fn parse(row: &Value) -> Tracking {
        let zones = entries(&row["ct_zones"]).filter_map(|(zone, row)| Some((number(zone), uuid(row)?)));
        Tracking { zones: zones.collect(), external_ids: pairs(&row["external_ids"]) }
    }
}

impl Zone {
    fn parse(row: &Value) -> Zone {
        Zone {
            timeout_policy: uuids(&row["timeout_policy"]).into_iter().next(),
            external_ids: pairs(&row["external_ids"]),
        }
    }
}

/// Returns the members of a set. The wire form of a set with one member is the member.
fn items(value: &Value) -> impl Iterator<Item = &Value> {
    let (many, one) = match value.as_array().map(Vec::as_slice) {
        Some([Value::String(kind), Value::Array(many)]) if kind == "set" => (many.as_slice(), None),
        _ => (&[][..], (!value.is_null()).then_some(value)),
    };
    many.iter().chain(one)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn maybe_text(value: &Value) -> Option<String> {
    items(value).next().map(text)
}

fn uuid(value: &Value) -> Option<Uuid> {
    Some(Uuid(value[1].as_str()?.to_owned()))
}

fn uuids(value: &Value) -> BTreeSet<Uuid> {
    items(value).filter_map(uuid).collect()
}

/// Returns the entries of a map.
fn entries(value: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    value[1].as_array().into_iter().flatten().map(|pair| (&pair[0], &pair[1]))
}

fn pairs(value: &Value) -> BTreeMap<String, String> {
    entries(value).map(|(key, value)| (text(key), text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_restoration_of_flows_is_noticed() {
        let mut database = Database::default();
        let mut restores = |other_config: Value| {
            let row = json!({"bridges": ["set", []], "cur_cfg": 1, "other_config": other_config});
            database.update(&json!({"Open_vSwitch": {"root": {"new": row}}}));
            database.restores_flows
        };
        assert!(restores(json!(["map", [["flow-restore-wait", "true"], ["vlan-limit", "1"]]])));
        assert!(!restores(json!(["map", [["flow-restore-wait", "false"]]])));
        assert!(restores(json!(["map", [["flow-restore-wait", "true"]]])));
        assert!(!restores(json!(["map", []])));
    }

    #[test]
    fn updates_insert_change_and_delete_rows() {
        let mut database = Database::default();
        let interface = |ofport: Value| {
            json!({"name": "p", "type": "vxlan", "options": ["map", [["key", "flow"]]],
            "external_ids": ["map", []], "ofport": ofport, "error": ["set", []]})
        };
        database.update(&json!({
            "Open_vSwitch": {"root": {"new": {"bridges": ["set", [["uuid", "b"]]], "cur_cfg": 3}}},
            "Bridge": {"b": {"new": {"name": "br", "ports": ["uuid", "p"], "fail_mode": "secure",
                "protocols": "OpenFlow13", "datapath_type": ""}}},
            "Port": {"p": {"new": {"name": "p", "interfaces": ["uuid", "i"], "tag": 5, "vlan_mode": ["set", []],
                "other_config": ["map", []], "external_ids": ["map", [["endpoint-id", "e"]]]}}},
            "Interface": {"i": {"new": interface(json!(["set", []]))}},
        }));
        let (_, bridge) = database.bridge("br").unwrap();
        let (_, port, interfaces) = database.ports_of(bridge).next().unwrap();
        assert_eq!((port.tag, port.external_ids["endpoint-id"].as_str()), (Some(5), "e"));
        assert_eq!((interfaces[0].1.number(), interfaces[0].1.options["key"].as_str()), (None, "flow"));
        assert_eq!(database.current_configuration, 3);

        database.update(
            &json!({"Interface": {"i": {"old": {"ofport": ["set", []]}, "new": interface(json!(7))}}}),
        );
        assert_eq!(database.interfaces[&Uuid("i".into())].number(), Some(7));
        database.update(&json!({"Interface": {"i": {"old": interface(json!(7))}}}));
        assert!(database.interfaces.is_empty());
    }
}
