//! Queueing disciplines in the kernel: `tbf` on a port for traffic to the pod, a class of `htb` on the queue interface for
//! the traffic of each sending pod.

use std::collections::BTreeMap;

use contiv_abi::Port;
use futures::{StreamExt as _, TryStreamExt as _};
use rtnetlink::{
    packet_core::{
        DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
        Nla as _,
    },
    packet_route::{
        RouteNetlinkMessage,
        tc::{TcAttribute, TcHandle, TcHeader, TcMessage, TcOption},
    },
};

use super::limit::{Limit, htb, option, read_u32};
use crate::datapath::{
    Error,
    ebpf::{
        device::Netlink,
        failure::{errno, failed},
        maps::writes::Writes,
    },
};

const TBF: &str = "tbf";
const HTB: &str = "htb";
const FIFO: &str = "bfifo";

/// `TCA_OPTIONS`.
const OPTIONS: u16 = 2;

/// Handle of the agent's root queueing disciplines on every interface, and parent of the classes.
const ROOT: TcHandle = TcHandle { major: Port::QUEUE, minor: 0 };

/// Undecoded options: the library does not decode them for these kinds.
fn options(message: &TcMessage) -> Option<Vec<u8>> {
    message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => options.iter().find_map(|option| match option {
            TcOption::Other(attribute) => {
                let mut bytes = vec![0; attribute.value_len()];
                attribute.emit_value(&mut bytes);
                Some(bytes)
            }
            _ => None,
        }),
        _ => None,
    })
}

fn is(message: &TcMessage, kind: &str) -> bool {
    message.attributes.iter().any(|attribute| matches!(attribute, TcAttribute::Kind(name) if name == kind))
}

/// Queueing disciplines in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    /// Whether the queue interface has the `htb` root.
    pub(crate) root: bool,
    /// Limits of the classes of the queue interface, by minor number.
    pub(crate) classes: BTreeMap<u16, Limit>,
    /// Limits of ports, by interface index.
    pub(crate) ports: BTreeMap<u32, Limit>,
}

/// Evaluates the list of all qdiscs, and the list of the classes of `device`.
fn evaluate(device: u32, qdiscs: &[TcMessage], classes: &[TcMessage]) -> Installed {
    let mut installed = Installed::default();
    let mut backlogs: BTreeMap<u16, u32> = BTreeMap::new();
    for class in classes.iter().filter(|class| is(class, HTB) && class.header.handle.major == ROOT.major) {
        if let Some(limit) = options(class).and_then(|options| Limit::from_class(&options)) {
            installed.classes.insert(class.header.handle.minor, limit);
        }
    }
    for qdisc in qdiscs {
        let Ok(index) = u32::try_from(qdisc.header.index) else { continue };
        let TcHeader { handle, parent, .. } = qdisc.header;
        if handle == ROOT && is(qdisc, TBF) {
            if let Some(limit) = options(qdisc).and_then(|options| Limit::from_tbf(&options)) {
                installed.ports.insert(index, limit);
            }
        } else if handle == ROOT && index == device && is(qdisc, HTB) {
            installed.root = true;
        } else if index == device
            && parent.major == ROOT.major
            && is(qdisc, FIFO)
            && let Some(backlog) = options(qdisc).and_then(|options| read_u32(&options, 0))
        {
            backlogs.insert(parent.minor, backlog);
        }
    }
    for (class, limit) in &mut installed.classes {
        if backlogs.get(class) != Some(&limit.class_backlog()) {
            *limit = Limit::FOREIGN;
        }
    }
    installed
}

/// Reads the queueing disciplines of all interfaces, and the classes of the interface `device` unless it is zero.
pub(crate) async fn list(netlink: &Netlink, device: u32) -> Result<Installed, Error> {
    let what = || "list the queueing disciplines";
    let qdiscs: Vec<TcMessage> = netlink
        .handle()
        .qdisc()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(|error| failed(what(), error))?;
    let index = i32::try_from(device).map_err(|error| failed(what(), error))?;
    let classes: Vec<TcMessage> = match device {
        0 => vec![],
        _ => netlink
            .handle()
            .traffic_class(index)
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| failed(what(), error))?,
    };
    Ok(evaluate(device, &qdiscs, &classes))
}

/// Creates the `htb` root on an interface.
pub(crate) async fn create_root(netlink: &Netlink, device: u32, writes: &Writes) -> Result<(), Error> {
    let global: Vec<u8> = htb::GLOBAL.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let options = TcAttribute::Options(vec![option(htb::INIT, &global)]);
    let message = message(device, TcHandle::ROOT, ROOT, vec![kind(HTB), options])?;
    writes.count();
    request(netlink, RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE)
        .await
        .map_err(|error| failed("create the queue; check that the kernel has sch_htb", error))
}

/// Creates or changes a class. Queued packets stay.
pub(crate) async fn set_class(
    netlink: &Netlink,
    device: u32,
    class: u16,
    limit: &Limit,
    writes: &Writes,
) -> Result<(), Error> {
    let what = |error| failed(format!("set the class {class} of the queue"), error);
    let id = TcHandle { minor: class, ..ROOT };
    let options = TcAttribute::Options(limit.class_options());
    let class = message(device, ROOT, id, vec![kind(HTB), options])?;
    let backlog = TcAttribute::Other(DefaultNla::new(OPTIONS, limit.class_backlog().to_ne_bytes().to_vec()));
    let leaf = message(device, id, TcHandle::UNSPEC, vec![kind(FIFO), backlog])?;
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    writes.count();
    request(netlink, RouteNetlinkMessage::NewTrafficClass(class), flags).await.map_err(what)?;
    request(netlink, RouteNetlinkMessage::NewQueueDiscipline(leaf), flags).await.map_err(what)
}

/// Deletes a class and its queued packets.
pub(crate) async fn delete_class(
    netlink: &Netlink,
    device: u32,
    class: u16,
    writes: &Writes,
) -> Result<(), Error> {
    let message = message(device, ROOT, TcHandle { minor: class, ..ROOT }, vec![])?;
    writes.count();
    ignore_absent(request(netlink, RouteNetlinkMessage::DelTrafficClass(message), 0).await)
        .map_err(|error| failed(format!("delete the class {class} of the queue"), error))
}

/// Creates or changes the limit of a port. Queued packets stay.
pub(crate) async fn set_port(
    netlink: &Netlink,
    ifindex: u32,
    limit: &Limit,
    writes: &Writes,
) -> Result<(), Error> {
    let options = TcAttribute::Options(limit.tbf_options());
    let message = message(ifindex, TcHandle::ROOT, ROOT, vec![kind(TBF), options])?;
    writes.count();
    request(netlink, RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE)
        .await
        .map_err(|error| {
            failed(format!("limit interface {ifindex}; check that the kernel has sch_tbf"), error)
        })
}

/// Deletes the limit of a port and its queued packets.
pub(crate) async fn delete_port(netlink: &Netlink, ifindex: u32, writes: &Writes) -> Result<(), Error> {
    let message = message(ifindex, TcHandle::ROOT, ROOT, vec![])?;
    writes.count();
    ignore_absent(request(netlink, RouteNetlinkMessage::DelQueueDiscipline(message), 0).await)
        .map_err(|error| failed(format!("delete the limit of interface {ifindex}"), error))
}

async fn request(
    netlink: &Netlink,
    message: RouteNetlinkMessage,
    flags: u16,
) -> Result<(), rtnetlink::Error> {
    let mut request = NetlinkMessage::from(message);
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    let mut answers = netlink.handle().clone().request(request)?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload {
            return Err(rtnetlink::Error::NetlinkError(error));
        }
    }
    Ok(())
}

fn kind(name: &str) -> TcAttribute {
    TcAttribute::Kind(name.to_owned())
}

fn message(
    device: u32,
    parent: TcHandle,
    handle: TcHandle,
    attributes: Vec<TcAttribute>,
) -> Result<TcMessage, Error> {
    let index = i32::try_from(device).map_err(|error| failed(format!("find interface {device}"), error))?;
    let header = TcHeader { index, parent, handle, ..TcHeader::default() };
    Ok(TcMessage::from_parts(header, attributes))
}

/// Treats a missing interface, qdisc or class as success.
fn ignore_absent(result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match result {
        Err(error) if matches!(errno(&error), Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::limit::tests::encoded, *};

    #[test]
    fn qdiscs_with_other_handles_are_ignored() {
        let limit = Limit::new(8_000_000, 0).unwrap();
        let tbf = |index, handle| {
            let options = TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(
                OPTIONS,
                encoded(&limit.tbf_options()),
            ))]);
            message(index, TcHandle::ROOT, handle, vec![kind(TBF), options]).unwrap()
        };
        let other = TcHandle { major: 1, minor: 0 };
        let installed = evaluate(0, &[tbf(3, ROOT), tbf(4, other)], &[]);
        assert_eq!(installed.ports, [(3, limit)].into());
        assert!(!installed.root && installed.classes.is_empty());
    }
}
