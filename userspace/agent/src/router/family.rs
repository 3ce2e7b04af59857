//! Address families of rules and routes.

use rtnetlink::packet_route::AddressFamily;

pub(super) const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// Whether the kernel has no support for an address family.
pub(super) fn is_without(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(error) = error else { return false };
    [libc::EAFNOSUPPORT, libc::EOPNOTSUPP].contains(&-error.raw_code())
}
