//! Messages of netlink (`include/uapi/linux/netlink.h`), for subsystems that no crate knows.

/// Bytes of the header of a message.
pub(crate) const HEADER: usize = 16;
/// Flag in the type of an attribute whose value has attributes.
pub(crate) const NESTED: u16 = 0x8000;

/// The first message: its type, its body, and what follows.
pub(crate) fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..len)?;
    Some((kind, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// An attribute of a message.
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
    /// With its header and padding.
    pub(crate) padded: &'a [u8],
}

/// The attributes in `bytes`, up to the first that is not whole.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !NESTED;
        let value = bytes.get(4..len)?;
        let (padded, rest) = bytes.split_at_checked(len.next_multiple_of(4)).unwrap_or((bytes, &[]));
        bytes = rest;
        Some(Attribute { kind, value, padded })
    })
}
