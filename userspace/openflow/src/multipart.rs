//! Multipart messages: requests whose reply can span several messages (OpenFlow 1.3.5 section 7.3.5).

mod flows;
mod groups;

use bytes::BufMut;

pub use flows::{Flows, UnknownFlow};
pub use groups::{Groups, UnknownGroup};

use crate::flow::FlowFilter;
use crate::group::Group;
use crate::port::{Port, PortDesc};
use crate::wire::{DecodeError, EncodeError, Reader, put_text};

const DESC: u16 = 0;
const FLOW: u16 = 1;
const AGGREGATE: u16 = 2;
const TABLE: u16 = 3;
const PORT_STATS: u16 = 4;
const GROUP_DESC: u16 = 7;
const PORT_DESC: u16 = 13;
const MORE: u16 = 1;

/// Multipart request (`ofp_multipart_request`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultipartRequest {
    /// Description of the switch (`OFPMP_DESC`).
    Desc,
    /// Selected flows with counters (`OFPMP_FLOW`).
    Flows(FlowFilter),
    /// Counters summed over the selected flows (`OFPMP_AGGREGATE`).
    Aggregate(FlowFilter),
    /// Statistics of all tables (`OFPMP_TABLE`).
    Tables,
    /// Statistics of a port, or of all with [`Port::ANY`] (`OFPMP_PORT_STATS`).
    PortStats(Port),
    /// Descriptions of all groups (`OFPMP_GROUP_DESC`).
    Groups,
    /// Descriptions of all ports (`OFPMP_PORT_DESC`).
    Ports,
    /// A request that this library does not decode.
    Other {
        /// Multipart type.
        kind: u16,
        /// Bytes after the multipart header.
        body: Vec<u8>,
    },
}

impl MultipartRequest {
    pub(crate) fn check(&self) -> Result<(), EncodeError> {
        match self {
            MultipartRequest::Flows(filter) | MultipartRequest::Aggregate(filter) => {
                filter.matching.check_values()
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self {
            MultipartRequest::Desc => DESC,
            MultipartRequest::Flows(_) => FLOW,
            MultipartRequest::Aggregate(_) => AGGREGATE,
            MultipartRequest::Tables => TABLE,
            MultipartRequest::PortStats(_) => PORT_STATS,
            MultipartRequest::Groups => GROUP_DESC,
            MultipartRequest::Ports => PORT_DESC,
            MultipartRequest::Other { kind, .. } => *kind,
        };
        out.put_u16(kind);
        out.put_bytes(0, 6);
        match self {
            MultipartRequest::Flows(filter) | MultipartRequest::Aggregate(filter) => filter.encode(out),
            MultipartRequest::PortStats(port) => {
                out.put_u32(port.0);
                out.put_u32(0);
            }
            MultipartRequest::Other { body, .. } => out.extend_from_slice(body),
            MultipartRequest::Desc
            | MultipartRequest::Tables
            | MultipartRequest::Groups
            | MultipartRequest::Ports => {}
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<MultipartRequest, DecodeError> {
        let kind = r.u16()?;
        r.skip(6)?;
        Ok(match kind {
            DESC => MultipartRequest::Desc,
            FLOW => MultipartRequest::Flows(FlowFilter::decode(r)?),
            AGGREGATE => MultipartRequest::Aggregate(FlowFilter::decode(r)?),
            TABLE => MultipartRequest::Tables,
            PORT_STATS => MultipartRequest::PortStats(Port(r.u32()?)),
            GROUP_DESC => MultipartRequest::Groups,
            PORT_DESC => MultipartRequest::Ports,
            kind => MultipartRequest::Other { kind, body: r.rest().to_vec() },
        })
    }
}

/// Description of the switch (`ofp_desc`). Texts are cut to their wire size when encoded: 255 bytes, 31 for `serial`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desc {
    /// Manufacturer.
    pub manufacturer: String,
    /// Hardware.
    pub hardware: String,
    /// Software version.
    pub software: String,
    /// Serial number.
    pub serial: String,
    /// Human-readable name of the datapath.
    pub datapath: String,
}

/// Counters summed over flows (`ofp_aggregate_stats_reply`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Packets that matched.
    pub packets: u64,
    /// Bytes of the packets that matched.
    pub bytes: u64,
    /// Number of flows.
    pub flows: u32,
}

/// Statistics of a table (`ofp_table_stats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableStats {
    /// Table number.
    pub table: u8,
    /// Number of flows in the table.
    pub active: u32,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that matched a flow.
    pub matched: u64,
}

/// Statistics of a port (`ofp_port_stats`). A counter that the switch does not support is all ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStats {
    /// Port number.
    pub port: Port,
    /// Received packets.
    pub rx_packets: u64,
    /// Sent packets.
    pub tx_packets: u64,
    /// Received bytes.
    pub rx_bytes: u64,
    /// Sent bytes.
    pub tx_bytes: u64,
    /// Dropped packets on receive.
    pub rx_dropped: u64,
    /// Dropped packets on send.
    pub tx_dropped: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Send errors.
    pub tx_errors: u64,
    /// Frame alignment errors.
    pub rx_frame_errors: u64,
    /// Packets with receive overrun.
    pub rx_overruns: u64,
    /// CRC errors.
    pub rx_crc_errors: u64,
    /// Collisions.
    pub collisions: u64,
    /// Whole seconds since the port was added.
    pub seconds: u32,
    /// Nanoseconds beyond `seconds`.
    pub nanoseconds: u32,
}

/// Content of one multipart reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parts {
    /// Description of the switch.
    Desc(Desc),
    /// Flows with counters.
    Flows(Flows),
    /// Summed counters.
    Aggregate(Aggregate),
    /// Table statistics.
    Tables(Vec<TableStats>),
    /// Port statistics.
    PortStats(Vec<PortStats>),
    /// Group descriptions.
    Groups(Groups),
    /// Port descriptions.
    Ports(Vec<PortDesc>),
    /// A reply that this library does not decode.
    Other {
        /// Multipart type.
        kind: u16,
        /// Bytes after the multipart header.
        body: Vec<u8>,
    },
}

/// One message of a multipart reply (`ofp_multipart_reply`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipartReply {
    /// Whether another message with the same transaction id follows (`OFPMPF_REPLY_MORE`).
    pub more: bool,
    /// Content of this message.
    pub parts: Parts,
}

impl MultipartReply {
    pub(crate) fn check(&self) -> Result<(), EncodeError> {
        match &self.parts {
            Parts::Flows(flows) => flows.known.iter().try_for_each(|stats| stats.flow.check()),
            Parts::Groups(groups) => groups.known.iter().try_for_each(Group::check),
            _ => Ok(()),
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match &self.parts {
            Parts::Desc(_) => DESC,
            Parts::Flows(_) => FLOW,
            Parts::Aggregate(_) => AGGREGATE,
            Parts::Tables(_) => TABLE,
            Parts::PortStats(_) => PORT_STATS,
            Parts::Groups(_) => GROUP_DESC,
            Parts::Ports(_) => PORT_DESC,
            Parts::Other { kind, .. } => *kind,
        };
        out.put_u16(kind);
        out.put_u16(if self.more { MORE } else { 0 });
        out.put_u32(0);
        match &self.parts {
            Parts::Desc(desc) => {
                for (text, width) in desc.columns() {
                    put_text(out, text, width);
                }
            }
            Parts::Flows(flows) => flows.encode(out),
            Parts::Aggregate(sum) => {
                out.put_u64(sum.packets);
                out.put_u64(sum.bytes);
                out.put_u32(sum.flows);
                out.put_u32(0);
            }
            Parts::Tables(tables) => tables.iter().for_each(|table| table.encode(out)),
            Parts::PortStats(ports) => ports.iter().for_each(|port| port.encode(out)),
            Parts::Groups(groups) => groups.encode(out),
            Parts::Ports(ports) => ports.iter().for_each(|port| port.encode(out)),
            Parts::Other { body, .. } => out.extend_from_slice(body),
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<MultipartReply, DecodeError> {
        let (kind, flags) = (r.u16()?, r.u16()?);
        r.skip(4)?;
        let parts = match kind {
            DESC => Parts::Desc(Desc::decode(r)?),
            FLOW => Parts::Flows(Flows::decode(r)?),
            AGGREGATE => Parts::Aggregate(Aggregate { packets: r.u64()?, bytes: r.u64()?, flows: r.u32()? }),
            TABLE => Parts::Tables(all(r, TableStats::decode)?),
            PORT_STATS => Parts::PortStats(all(r, PortStats::decode)?),
            GROUP_DESC => Parts::Groups(Groups::decode(r)?),
            PORT_DESC => Parts::Ports(all(r, PortDesc::decode)?),
            kind => Parts::Other { kind, body: r.rest().to_vec() },
        };
        Ok(MultipartReply { more: flags & MORE != 0, parts })
    }
}

fn all<T>(
    r: &mut Reader<'_>,
    one: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut found = vec![];
    while !r.is_empty() {
        found.push(one(r)?);
    }
    Ok(found)
}

impl Desc {
    fn columns(&self) -> [(&str, usize); 5] {
        [
            (&self.manufacturer, 256),
            (&self.hardware, 256),
            (&self.software, 256),
            (&self.serial, 32),
            (&self.datapath, 256),
        ]
    }

    fn decode(r: &mut Reader<'_>) -> Result<Desc, DecodeError> {
        Ok(Desc {
            manufacturer: r.text(256)?,
            hardware: r.text(256)?,
            software: r.text(256)?,
            serial: r.text(32)?,
            datapath: r.text(256)?,
        })
    }
}

impl TableStats {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.table);
        out.put_bytes(0, 3);
        out.put_u32(self.active);
        out.put_u64(self.lookups);
        out.put_u64(self.matched);
    }

    fn decode(r: &mut Reader<'_>) -> Result<TableStats, DecodeError> {
        let table = r.u8()?;
        r.skip(3)?;
        Ok(TableStats { table, active: r.u32()?, lookups: r.u64()?, matched: r.u64()? })
    }
}

impl PortStats {
    fn counters(&self) -> [u64; 12] {
        [
            self.rx_packets,
            self.tx_packets,
            self.rx_bytes,
            self.tx_bytes,
            self.rx_dropped,
            self.tx_dropped,
            self.rx_errors,
            self.tx_errors,
            self.rx_frame_errors,
            self.rx_overruns,
            self.rx_crc_errors,
            self.collisions,
        ]
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.port.0);
        out.put_u32(0);
        self.counters().into_iter().for_each(|counter| out.put_u64(counter));
        out.put_u32(self.seconds);
        out.put_u32(self.nanoseconds);
    }

    fn decode(r: &mut Reader<'_>) -> Result<PortStats, DecodeError> {
        let port = Port(r.u32()?);
        r.skip(4)?;
        Ok(PortStats {
            port,
            rx_packets: r.u64()?,
            tx_packets: r.u64()?,
            rx_bytes: r.u64()?,
            tx_bytes: r.u64()?,
            rx_dropped: r.u64()?,
            tx_dropped: r.u64()?,
            rx_errors: r.u64()?,
            tx_errors: r.u64()?,
            rx_frame_errors: r.u64()?,
            rx_overruns: r.u64()?,
            rx_crc_errors: r.u64()?,
            collisions: r.u64()?,
            seconds: r.u32()?,
            nanoseconds: r.u32()?,
        })
    }
}
