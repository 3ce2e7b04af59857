//! Filters of the clsact qdisc, for kernels without TCX.
//!
//! Filters run in the order of their priorities. The agent attaches its filters after those of other ABI versions, and
//! removes the others when its maps are complete. The handle of a filter encodes the ABI version.

use aya::programs::{
    SchedClassifier, TcAttachType,
    tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle},
};
use futures::TryStreamExt as _;
use rtnetlink::packet_route::tc::{TcAttribute, TcFilterBpfOption, TcMessage, TcOption};

use crate::datapath::{
    Error,
    ebpf::{
        device::Netlink,
        failure::{errno, failed},
    },
};

/// Priority of the first filter.
const PRIORITY: u16 = 0xc0;
/// Handle of the filters of an ABI version. ABI version 2, the first with filters, has 0xc0.
const fn handle(version: u32) -> TcHandle {
    TcHandle::new(0, 0xbe + version as u16)
}

/// Prefix of the names of our programs.
const PREFIX: &str = "ctv_";

/// An ingress filter with one of our programs, of any ABI version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClsactFilter {
    priority: u16,
    handle: TcHandle,
    /// Id of the program.
    pub(crate) program: u32,
    /// Name of the filter, which begins with that of the program.
    name: String,
}

impl ClsactFilter {
    /// Whether the filter is one of this ABI version.
    pub(crate) fn is_of(&self, version: u32) -> bool {
        self.handle == handle(version)
    }

    /// Whether the filter has this program, of any build.
    pub(crate) fn runs(&self, program: &str) -> bool {
        self.name.split(':').next() == Some(program)
    }

    pub(crate) fn detach(&self, interface: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (priority, handle) = (self.priority, self.handle);
        let link = SchedClassifierLink::attached(interface, TcAttachType::Ingress, priority, handle, None)?;
        Ok(aya::programs::links::Link::detach(link)?)
    }

    fn parse(message: &TcMessage) -> Option<ClsactFilter> {
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
        let name = bpf.iter().find_map(|option| match option {
            TcFilterBpfOption::ProgName(name) if name.starts_with(PREFIX) => Some(name.clone()),
            _ => None,
        })?;
        let program = bpf.iter().find_map(|option| match option {
            TcFilterBpfOption::ProgId(id) => Some(*id),
            _ => None,
        })?;
        let header = &message.header;
        let handle = TcHandle::new(header.handle.major, header.handle.minor);
        // The upper half of `tcm_info` is the priority, the lower half the protocol.
        Some(ClsactFilter { priority: (header.info >> 16) as u16, handle, program, name })
    }
}

/// Filters on an interface. Empty if the interface or its clsact qdisc does not exist.
pub(crate) async fn list(netlink: &Netlink, ifindex: u32) -> Result<Vec<ClsactFilter>, Error> {
    let what = || format!("list the filters of interface {ifindex}");
    let index = i32::try_from(ifindex).map_err(|error| failed(what(), error))?;
    let filters: Result<Vec<_>, _> =
        netlink.handle().traffic_filter(index).get().ingress().execute().try_collect().await;
    match filters {
        Ok(filters) => Ok(filters.iter().filter_map(ClsactFilter::parse).collect()),
        Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::ENOENT | libc::ENODEV)) => Ok(vec![]),
        Err(error) => Err(failed(what(), error)),
    }
}

/// Attaches the program to an interface with the filters `existing`: replaces the filter of the same ABI version `version`, or
/// appends a filter.
pub(crate) fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    existing: &[ClsactFilter],
    version: u32,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match tc::qdisc_add_clsact(interface) {
        Err(error) if errno(&error) != Some(libc::EEXIST) && !matches!(error, TcError::AlreadyAttached) => {
            return Err(error.into());
        }
        _ => {}
    }
    let id = match existing.iter().find(|filter| filter.is_of(version)) {
        Some(current) => program.attach_to_link(SchedClassifierLink::attached(
            interface,
            TcAttachType::Ingress,
            current.priority,
            handle(version),
            None,
        )?)?,
        None => {
            let last = existing.iter().map(|filter| filter.priority).max();
            let priority = last.map_or(PRIORITY, |last| last.saturating_add(1));
            let options = NlOptions { priority, handle: handle(version), classid: None };
            program.attach_with_options(
                interface,
                TcAttachType::Ingress,
                TcAttachOptions::Netlink(options),
            )?
        }
    };
    // Dropping the link would detach the program.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}
