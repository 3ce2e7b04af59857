//! Bandwidth limits of ports: policing of what a pod sends, a queue for what it receives.
//!
//! ovs-vswitchd makes a policer on the interface from the columns `ingress_policing_*`, and the queueing discipline `htb` from
//! a QoS row with one queue, the default. Unlike rows of ports, rows of QoS and of queues stay when nothing refers to them, so
//! that they are deleted with their port.

mod length;

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::group::Rate;
use serde_json::{Value, json};

use super::ovsdb::{
    Database, Interface, OWNER_KEY, Operation, Port, Qos, Queue, Uuid, map, numbered, optional,
};
use crate::datapath::ovs::options::DatapathType;

/// Bytes. Larger than the largest GSO packet.
const MAX_PACKET: u64 = 68 << 10;
/// Number of the default queue.
const QUEUE: i64 = 0;

/// A rate and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    kilobits_per_second: u64,
    /// Bytes.
    burst: u64,
}

impl Limit {
    /// Raises a burst that is too small for a packet or for 100 ms, because a policer has no queue. `None` for rates below one
    /// kilobit per second.
    fn new(rate: Rate) -> Option<Limit> {
        let kilobits_per_second = rate.bits_per_second / 1000;
        let burst = rate.burst_bytes.max(MAX_PACKET).max(rate.bits_per_second / 8 / 10);
        (kilobits_per_second > 0).then_some(Limit { kilobits_per_second, burst })
    }

    /// Bits per second.
    fn rate(self) -> String {
        self.kilobits_per_second.saturating_mul(1000).to_string()
    }

    fn qos_config(self) -> BTreeMap<String, String> {
        [("max-rate".to_owned(), self.rate())].into()
    }

    fn queue_config(self) -> BTreeMap<String, String> {
        // A queue borrows what is above its minimum rate from the port, whose burst is one packet.
        let rates = [("min-rate", self.rate()), ("max-rate", self.rate())];
        let burst = ("burst", self.burst.saturating_mul(8).to_string());
        rates.into_iter().chain([burst]).map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Rate and burst of the policer in kilobits.
    fn policing(self) -> (i64, i64) {
        let number = |kilobits: u64| i64::try_from(kilobits).unwrap_or(i64::MAX);
        (number(self.kilobits_per_second), number(self.burst.saturating_mul(8).div_ceil(1000)))
    }
}

/// Limits of a port in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bandwidth {
    /// The limits are not the agent's: they stay as they are.
    Foreign,
    Unlimited,
    Limited(Limit),
}

impl From<Option<Rate>> for Bandwidth {
    fn from(rate: Option<Rate>) -> Bandwidth {
        rate.and_then(Limit::new).map_or(Bandwidth::Unlimited, Bandwidth::Limited)
    }
}

impl Bandwidth {
    /// Whether a rate limits anything.
    pub(crate) fn limits(rate: Option<Rate>) -> bool {
        matches!(Bandwidth::from(rate), Bandwidth::Limited(_))
    }

    pub(super) fn matches_interface(self, interface: &Interface) -> bool {
        self.policing().is_none_or(|policing| policing == interface.ingress_policing)
    }

    /// Rate and burst of the policer; `None` if they stay.
    fn policing(self) -> Option<(i64, i64)> {
        match self {
            Bandwidth::Foreign => None,
            Bandwidth::Unlimited => Some((0, 0)),
            Bandwidth::Limited(limit) => Some(limit.policing()),
        }
    }

    /// Adds the columns of the interface to `row`.
    pub(super) fn set_interface_columns(self, row: &mut Value) {
        if let Some((rate, burst)) = self.policing() {
            row["ingress_policing_rate"] = json!(rate);
            row["ingress_policing_burst"] = json!(burst);
        }
    }

    pub(super) fn matches_port(self, database: &Database, port: &Port) -> bool {
        match self {
            Bandwidth::Foreign => true,
            Bandwidth::Unlimited => port.qos.is_none(),
            Bandwidth::Limited(limit) => QosRows::of(database, port).is_some_and(|rows| rows.have(limit)),
        }
    }

    /// Returns the operations on rows of QoS and queues. Adds the column of the port, which is new if `port` is `None`, to `row`.
    pub(super) fn operations(
        self,
        database: &Database,
        port: Option<&Port>,
        owner: &BTreeMap<String, String>,
        n: usize,
        row: &mut Value,
    ) -> Vec<Operation> {
        let rows = port.and_then(|port| QosRows::of(database, port));
        match (self, rows) {
            (Bandwidth::Foreign, _) => vec![],
            (Bandwidth::Unlimited, rows) => {
                row["qos"] = optional::<Value>(None);
                rows.map(|rows| rows.deletion(database)).unwrap_or_default()
            }
            (Bandwidth::Limited(limit), rows) => {
                let (mut operations, queue) = match rows.and_then(|rows| rows.queue) {
                    Some((uuid, _)) => {
                        let columns = json!({"other_config": map(&limit.queue_config())});
                        (vec![Operation::update("Queue", uuid, columns)], uuid.into())
                    }
                    None => {
                        let columns =
                            json!({"other_config": map(&limit.queue_config()), "external_ids": map(owner)});
                        let (insert, queue) = Operation::insert("Queue", &format!("queue{n}"), columns);
                        (vec![insert], queue)
                    }
                };
                let mut columns = json!({
                    "type": "linux-htb",
                    "other_config": map(&limit.qos_config()),
                    "queues": numbered([QUEUE], &queue),
                });
                match rows {
                    Some(rows) => operations.push(Operation::update("QoS", rows.qos.0, columns)),
                    None => {
                        columns["external_ids"] = map(owner);
                        let (insert, qos) = Operation::insert("QoS", &format!("qos{n}"), columns);
                        operations.push(insert);
                        row["qos"] = optional(Some(qos));
                    }
                }
                operations
            }
        }
    }

    /// Sets the length of the queue that ovs-vswitchd is about to create on the interface.
    pub(super) fn prepare_queue(self, interface: &str, datapath_type: DatapathType) {
        if matches!(self, Bandwidth::Limited(_))
            && let Err(error) = length::set(interface, length::of(datapath_type))
        {
            tracing::debug!("set the queue length of {interface}: {error}");
        }
    }
}

/// Rows of QoS that the agent made for a port.
#[derive(Clone, Copy)]
struct QosRows<'a> {
    qos: (&'a Uuid, &'a Qos),
    /// The default queue.
    queue: Option<(&'a Uuid, &'a Queue)>,
}

impl<'a> QosRows<'a> {
    fn of(database: &'a Database, port: &Port) -> Option<QosRows<'a>> {
        let qos = database.qos.get_key_value(port.qos.as_ref()?);
        let qos = qos.filter(|(_, qos)| qos.external_ids.contains_key(OWNER_KEY))?;
        let queue = qos.1.queues.get(&QUEUE).and_then(|uuid| database.queues.get_key_value(uuid));
        Some(QosRows { qos, queue: queue.filter(|(_, queue)| queue.external_ids.contains_key(OWNER_KEY)) })
    }

    fn have(&self, limit: Limit) -> bool {
        let (_, qos) = self.qos;
        qos.qos_type == "linux-htb"
            && qos.other_config == limit.qos_config()
            && qos.queues.len() == 1
            && self.queue.is_some_and(|(_, queue)| queue.other_config == limit.queue_config())
    }

    /// Returns the deletions of the rows, without those that other programs have given to others: ovsdb-server would refuse the
    /// whole transaction. They are [`orphans`] when nothing refers to them.
    fn deletion(&self, database: &Database) -> Vec<Operation> {
        let is_shared = |n: usize| n > 1;
        let (qos, _) = self.qos;
        if is_shared(database.ports.values().filter(|port| port.qos.as_ref() == Some(qos)).count()) {
            return vec![];
        }
        let holders = |queue: &Uuid| {
            let holds = |qos: &&Qos| qos.queues.values().any(|uuid| uuid == queue);
            database.qos.values().filter(holds).count()
        };
        let queue = self.queue.filter(|(queue, _)| !is_shared(holders(queue)));
        let queue = queue.map(|(uuid, _)| Operation::delete("Queue", uuid));
        [Operation::delete("QoS", qos)].into_iter().chain(queue).collect()
    }
}

/// Returns the operations that release the rows of a port that is removed.
pub(super) fn removal(database: &Database, port_uuid: &Uuid, port: &Port) -> Vec<Operation> {
    let Some(rows) = QosRows::of(database, port) else { return vec![] };
    // The row of the port exists until the end of the transaction, and refers to the row of QoS.
    let release = Operation::update("Port", port_uuid, json!({"qos": optional::<Value>(None)}));
    std::iter::once(release).chain(rows.deletion(database)).collect()
}

/// Returns the deletions of rows that the agent made and that nothing refers to.
pub(crate) fn orphans(database: &Database) -> Vec<Operation> {
    let used: BTreeSet<&Uuid> = database.ports.values().filter_map(|port| port.qos.as_ref()).collect();
    let is_orphan =
        |(uuid, qos): &(&Uuid, &Qos)| qos.external_ids.contains_key(OWNER_KEY) && !used.contains(uuid);
    let (orphans, kept): (Vec<_>, Vec<_>) = database.qos.iter().partition(is_orphan);
    let queued: BTreeSet<&Uuid> = kept.iter().flat_map(|(_, qos)| qos.queues.values()).collect();
    let queues = database.queues.iter();
    let queues =
        queues.filter(|(uuid, queue)| queue.external_ids.contains_key(OWNER_KEY) && !queued.contains(uuid));
    let queues = queues.map(|(uuid, _)| Operation::delete("Queue", uuid));
    orphans.into_iter().map(|(uuid, _)| Operation::delete("QoS", uuid)).chain(queues).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_raised_to_a_packet_and_to_100_ms() {
        for (bits, bytes, expected) in [
            (1_048_000, 12_500, Some((1048, 558))),
            (10_485_000, 1_000_000, Some((10_485, 8000))),
            (1_000_000_000, 1_000_000, Some((1_000_000, 100_000))),
            (0, 1_000_000, None),
        ] {
            let limit = Limit::new(Rate { bits_per_second: bits, burst_bytes: bytes });
            assert_eq!(limit.map(Limit::policing), expected, "{bits}");
        }
    }
}
