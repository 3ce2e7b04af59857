//! Programs as filters of the clsact qdisc, for kernels without TCX.
//!
//! Filters run in the order of their priorities. Those of another layout of the maps stay first: an agent puts its own
//! behind them, and takes them away when its maps are filled. A filter's handle tells which layout it is of.

use aya::programs::{
    SchedClassifier, TcAttachType,
    tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle},
};
use contiv_abi::ABI_VERSION;
use futures::TryStreamExt as _;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcMessage, TcOption};

use crate::datapath::{
    Error,
    ebpf::{
        device::Netlink,
        failure::{errno, failed},
    },
};

/// Of ours, where no others are.
const PRIORITY: u16 = 0xc0;
/// Of ours. The first layout with filters, 2, has 0xc0.
const HANDLE: TcHandle = TcHandle::new(0, 0xbe + ABI_VERSION as u16);
/// What our programs' names begin with.
const PREFIX: &str = "ctv_";

/// A program of this or another layout, as a filter on the ingress of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    priority: u16,
    handle: TcHandle,
    /// The kernel's number of it.
    pub(crate) program: u32,
}

impl Filter {
    pub(crate) fn is_of_another_layout(&self) -> bool {
        self.handle != HANDLE
    }

    pub(crate) fn detach(&self, interface: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (priority, handle) = (self.priority, self.handle);
        let link = SchedClassifierLink::attached(interface, TcAttachType::Ingress, priority, handle, None)?;
        Ok(aya::programs::links::Link::detach(link)?)
    }

    fn parse(message: &TcMessage) -> Option<Filter> {
        let options = message.attributes.iter().filter_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        });
        let bpf: Vec<&TcFilterBpfOption> = options
            .flatten()
            .filter_map(|option| match option {
                TcOption::Bpf(option) => Some(option),
                _ => None,
            })
            .collect();
        let is_ours = |option: &&TcFilterBpfOption| matches!(option, TcFilterBpfOption::ProgName(name) if name.starts_with(PREFIX));
        bpf.iter().copied().find(is_ours)?;
        let program = bpf.iter().find_map(|option| match option {
            TcFilterBpfOption::ProgId(id) => Some(*id),
            _ => None,
        })?;
        let header = &message.header;
        let handle = TcHandle::new(header.handle.major, header.handle.minor);
        // The upper half; the lower is the protocol.
        Some(Filter { priority: (header.info >> 16) as u16, handle, program })
    }
}

/// Those on an interface; none where there is no clsact qdisc, or no interface any more.
pub(crate) async fn on(netlink: &Netlink, ifindex: u32) -> Result<Vec<Filter>, Error> {
    let what = || format!("list the filters of interface {ifindex}");
    let index = i32::try_from(ifindex).map_err(|error| failed(what(), error))?;
    let filters: Result<Vec<_>, _> =
        netlink.handle().traffic_filter(index).get().ingress().execute().try_collect().await;
    match filters {
        Ok(filters) => Ok(filters.iter().filter_map(Filter::parse).collect()),
        Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::ENOENT | libc::ENODEV)) => Ok(vec![]),
        Err(error) => Err(failed(what(), error)),
    }
}

/// Puts the program on an interface that has the filters `there`: in place of an older one of its own layout, or behind
/// those of others.
pub(crate) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    there: &[Filter],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match tc::qdisc_add_clsact(interface) {
        Err(error) if errno(&error) != Some(libc::EEXIST) && !matches!(error, TcError::AlreadyAttached) => {
            return Err(error.into());
        }
        _ => {}
    }
    let id = match there.iter().find(|filter| !filter.is_of_another_layout()) {
        Some(ours) => program.attach_to_link(SchedClassifierLink::attached(
            interface,
            TcAttachType::Ingress,
            ours.priority,
            HANDLE,
            None,
        )?)?,
        None => {
            let last = there.iter().map(|filter| filter.priority).max();
            let priority = last.map_or(PRIORITY, |last| last.saturating_add(1));
            let options = NlOptions { priority, handle: HANDLE, classid: None };
            program.attach_with_options(
                interface,
                TcAttachType::Ingress,
                TcAttachOptions::Netlink(options),
            )?
        }
    };
    // Dropping it would detach the program; the filter is to stay.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}
