//! Numbers of host ends of veth pairs.

use std::{collections::BTreeSet, fmt};

use super::error::PORT_COUNT;

const PREFIX: &str = "vvport";

/// Number of a port, 1 to 65534 like the original's. `Display` formats the interface name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port(u32);

impl Port {
    /// Parses the interface name of a port.
    pub fn parse(name: &str) -> Option<Port> {
        let digits = name.strip_prefix(PREFIX)?;
        let number = digits.parse().ok().filter(|n| (1..=PORT_COUNT).contains(n))?;
        (Port(number).to_string() == name).then_some(Port(number))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

/// Allocator of port numbers. A number is reserved before the interface is created, so concurrent requests use different
/// names.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    used: BTreeSet<u32>,
    /// All numbers below this one are used.
    low: u32,
}

impl Numbers {
    /// Marks a number as used.
    pub(super) fn reserve(&mut self, port: Port) {
        self.used.insert(port.0);
    }

    /// Reserves the lowest free number.
    pub(super) fn allocate(&mut self) -> Option<Port> {
        let mut number = self.low.max(1);
        while self.used.contains(&number) {
            number += 1;
        }
        self.low = number;
        (number <= PORT_COUNT).then(|| {
            self.used.insert(number);
            Port(number)
        })
    }

    /// Frees a number.
    pub(super) fn release(&mut self, port: Port) {
        self.used.remove(&port.0);
        self.low = self.low.min(port.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_names_are_parsed() {
        assert_eq!(Port::parse("vvport3"), Some(Port(3)));
        for bad in ["vvport", "vvport0", "vvport03", "vvport65535", "vport3", "vvport3x", "vvport-3"] {
            assert_eq!(Port::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn allocates_the_lowest_free_number() {
        let mut numbers = Numbers::default();
        numbers.reserve(Port(2));
        assert_eq!((numbers.allocate(), numbers.allocate()), (Some(Port(1)), Some(Port(3))));
        numbers.release(Port(2));
        assert_eq!((numbers.allocate(), numbers.allocate()), (Some(Port(2)), Some(Port(4))));
        for number in 5..=PORT_COUNT {
            assert_eq!(numbers.allocate(), Some(Port(number)));
        }
        assert_eq!(numbers.allocate(), None);
    }
}
