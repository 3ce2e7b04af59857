//! The node's ends of veth pairs, by number.

use std::{collections::BTreeSet, fmt};

use super::Error;

/// Numbers run from 1, as the original's; it wraps at this one.
pub(super) const COUNT: u32 = 0xfffe;

const PREFIX: &str = "vvport";

/// The number of a port. `Display` is the interface's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port(u32);

impl Port {
    /// The port that the interface `name` is, if it is one.
    pub fn parse(name: &str) -> Option<Port> {
        let digits = name.strip_prefix(PREFIX)?;
        let number = digits.parse().ok().filter(|n| (1..=COUNT).contains(n))?;
        (Port(number).to_string() == name).then_some(Port(number))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

/// Which numbers are in use. A number is reserved before the kernel is asked, so that interfaces
/// made at the same time never want the same name.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    taken: BTreeSet<u32>,
    /// Every number below this one is taken.
    low: u32,
}

impl Numbers {
    pub(super) fn take(&mut self, port: Port) {
        self.taken.insert(port.0);
    }

    /// Takes the lowest free one.
    pub(super) fn lowest(&mut self) -> Option<Port> {
        let mut number = self.low.max(1);
        while self.taken.contains(&number) {
            number += 1;
        }
        self.low = number;
        (number <= COUNT).then(|| {
            self.taken.insert(number);
            Port(number)
        })
    }

    pub(super) fn give(&mut self, port: Port) {
        self.taken.remove(&port.0);
        self.low = self.low.min(port.0);
    }
}

/// Keeps the node's own IPv6 off a port: its router solicitations and link-local address are not
/// for the pod to see.
pub(crate) fn silence(name: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    match std::fs::write(&path, "1") {
        // A node without IPv6 has nothing to keep off.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(Error::setting("turn off the node's own IPv6 on", name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        assert_eq!(Port::parse("vvport3"), Some(Port(3)));
        for bad in ["vvport", "vvport0", "vvport03", "vvport65535", "vport3", "vvport3x", "vvport-3"] {
            assert_eq!(Port::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_lowest_free_number_is_taken() {
        let mut numbers = Numbers::default();
        numbers.take(Port(2));
        assert_eq!((numbers.lowest(), numbers.lowest()), (Some(Port(1)), Some(Port(3))));
        numbers.give(Port(2));
        assert_eq!((numbers.lowest(), numbers.lowest()), (Some(Port(2)), Some(Port(4))));
        for number in 5..=COUNT {
            assert_eq!(numbers.lowest(), Some(Port(number)));
        }
        assert_eq!(numbers.lowest(), None);
    }
}
