use std::fmt;

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The ports from `first` to `last`. Returns `None` if there are none.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first <= last { Some(PortRange { first, last }) } else { None }
    }

    /// The lowest port.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Returns true if the port is in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl From<u16> for PortRange {
    /// The range with one port.
    fn from(port: u16) -> Self {
        PortRange { first: port, last: port }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => self.first.fmt(f),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_in_the_range() {
        let range = PortRange::new(80, 82).unwrap();
        assert_eq!([79, 80, 82, 83].map(|port| range.contains(port)), [false, true, true, false]);
        assert_eq!((range.first(), range.last(), range.to_string().as_str()), (80, 82, "80-82"));
        assert_eq!(
            (PortRange::from(80), PortRange::from(80).to_string().as_str()),
            (PortRange::new(80, 80).unwrap(), "80")
        );
        assert_eq!(PortRange::new(2, 1), None);
    }
}
