//! Datagrams from a datapath that joins fragments before it forwards them: they leave with the last one, and the kernel may divide them
//! otherwise than they came (for IPv6, it sends what is smaller than 1280 bytes as one fragment, and puts the fragment header behind
//! destination options).

use std::{borrow::Cow, ops::Range};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const FRAGMENT_HEADER: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// Length of options without more than padding.
const OPTIONS: usize = 8;
/// Offsets in the frames of the scripts: headers of IPv4 have no options, those of IPv6 no extension before the fragment header.
const V4_END: usize = 34;
const V6_END: usize = 54;
const FRAGMENT_END: usize = 62;

/// A fragment, or a whole datagram.
struct Part<'a> {
    /// Ethernet header and IP addresses.
    ends: [&'a [u8]; 2],
    protocol: u8,
    offset: usize,
    is_last: bool,
    data: Cow<'a, [u8]>,
}

/// What is the same however a datagram is divided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    ends: [Vec<u8>; 2],
    protocol: u8,
    data: Vec<u8>,
}

impl Datagram {
    /// Joins the parts of one datagram; none if one is missing, or if there are others.
    pub(crate) fn join(frames: &[impl AsRef<[u8]>]) -> Option<Datagram> {
        let parts: Option<Vec<Part>> = frames.iter().map(|frame| Part::read(frame.as_ref())).collect();
        let mut parts = parts?;
        parts.sort_by_key(|part| part.offset);
        let first = parts.first()?;
        let (ends, protocol) = (first.ends.map(<[u8]>::to_vec), first.protocol);
        let mut data = vec![];
        for part in &parts {
            let is_next = part.offset == data.len() && part.ends == first.ends && part.protocol == protocol;
            data.extend_from_slice(is_next.then_some(&part.data)?);
        }
        parts.last()?.is_last.then_some(Datagram { ends, protocol, data })
    }

    /// The destination port of UDP or TCP.
    pub(crate) fn port(&self) -> Option<u16> {
        self.data.get(2..4)?.try_into().ok().map(u16::from_be_bytes)
    }
}

impl Part<'_> {
    fn read(frame: &[u8]) -> Option<Part<'_>> {
        let field = |at: Range<usize>| frame.get(at)?.try_into().ok().map(u16::from_be_bytes);
        let length = |at: usize| field(at..at + 2).map(usize::from);
        let (addresses, protocol, flags, data) = match field(12..14)? {
            IPV4 => {
                let flags = field(20..22)?;
                let is_last = flags & 0x2000 == 0;
                let offset = usize::from(flags & 0x1fff) * 8;
                (26..34, *frame.get(23)?, (offset, is_last), V4_END..14 + length(16)?)
            }
            IPV6 if *frame.get(20)? == FRAGMENT_HEADER => {
                let flags = field(56..58)?;
                let offset = usize::from(flags >> 3) * 8;
                (22..54, *frame.get(54)?, (offset, flags & 1 == 0), FRAGMENT_END..V6_END + length(18)?)
            }
            IPV6 if *frame.get(20)? == DESTINATION_OPTIONS && *frame.get(V6_END)? == FRAGMENT_HEADER => {
                return Part::behind_options(frame);
            }
            IPV6 => (22..54, *frame.get(20)?, (0, true), V6_END..V6_END + length(18)?),
            _ => return None,
        };
        let ends = [frame.get(..14)?, frame.get(addresses)?];
        let (offset, is_last) = flags;
        Some(Part { ends, protocol, offset, is_last, data: frame.get(data)?.into() })
    }

    /// A whole datagram whose options are before the fragment header, as if they were behind it.
    fn behind_options(frame: &[u8]) -> Option<Part<'_>> {
        let (options, fragment) = frame.get(V6_END..)?.split_at_checked(OPTIONS)?;
        let (&[next, _, 0, 0, ..], payload) = fragment.split_at_checked(FRAGMENT_END - V6_END)? else {
            return None;
        };
        let data = [&[next], &options[1..], payload].concat().into();
        let ends = [frame.get(..14)?, frame.get(22..54)?];
        Some(Part { ends, protocol: DESTINATION_OPTIONS, offset: 0, is_last: true, data })
    }
}

/// Whether the frame is a fragment, and whether it is the last one.
pub(crate) fn position(frame: &[u8]) -> Option<bool> {
    let part = Part::read(frame)?;
    (part.offset > 0 || !part.is_last).then_some(part.is_last)
}
