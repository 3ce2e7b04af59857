//! State of a tracked connection.

use contiv_model::{mac::Mac, name::EndpointId, vrf::Vrf};

use crate::datapath::wire::packet::{End, Tuple};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) vrf: Vrf,
    /// Tuple of the first packet.
    pub(super) tuple: Tuple,
    /// Destination, or the backend of a service.
    pub(super) to: End,
    /// Ethernet addresses of the source and of the destination in the latest packet. An endpoint that uses an address
    /// without a record keeps its group.
    pub(super) macs: [Option<Mac>; 2],
    /// The endpoint of this node that opened the connection.
    pub(super) opener: Option<EndpointId>,
}

impl Connection {
    pub(super) fn is_translated(&self) -> bool {
        self.to != self.tuple.destination
    }

    /// Sets the Ethernet addresses of the source and of the destination.
    pub(super) fn between(self, macs: [Mac; 2]) -> Connection {
        Connection { macs: macs.map(Some), ..self }
    }

    /// Sets the endpoint of this node that opened the connection.
    pub(super) fn opened_by(self, opener: Option<EndpointId>) -> Connection {
        Connection { opener, ..self }
    }

    /// Sets the Ethernet address of the receiver of packets in this direction.
    pub(super) fn received_by(self, direction: Direction, mac: Mac) -> Connection {
        let [source, destination] = self.macs;
        let macs = match direction {
            Direction::Original => [source, Some(mac)],
            Direction::Reply => [Some(mac), destination],
        };
        Connection { macs, ..self }
    }

    /// Reports whether the backend of the service is the client itself.
    pub(super) fn is_own(&self) -> bool {
        self.is_translated() && self.to.0 == self.tuple.source.0
    }

    /// Returns the tuple of replies. A client that reaches itself through a service receives its packets from the
    /// service's address, and replies to it.
    pub(super) fn reply(&self) -> Tuple {
        let opened = self.tuple;
        let (client, port) = opened.source;
        let client = if self.is_own() { opened.destination.0 } else { client };
        Tuple { source: self.to, destination: (client, port), ..opened }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Original,
    Reply,
}

impl Direction {
    pub(super) fn opposite(self) -> Direction {
        match self {
            Direction::Original => Direction::Reply,
            Direction::Reply => Direction::Original,
        }
    }
}
