use std::net::IpAddr;

use rustbgpd_wire::{
    NotificationCode, NotificationMessage,
    notification::{description, extract_shutdown_communication, open_subcode},
};

use crate::Family;

/// Why a session is down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error(
        "connect to BGP neighbor {neighbor}: {cause}; check that the router IP is an address of this node and that the \
         neighbor accepts BGP from it"
    )]
    Connect {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// Error of the operating system.
        cause: String,
    },
    /// The connection ended without a NOTIFICATION.
    #[error("connection to BGP neighbor {neighbor}: {cause}")]
    Lost {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// Error of the operating system.
        cause: String,
    },
    /// The neighbor was silent for longer than the hold time.
    #[error(
        "BGP neighbor {neighbor}: hold timer expired: no message for {seconds} s; check the link and the neighbor"
    )]
    HoldTimer {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// Hold time of the session.
        seconds: u64,
    },
    /// The neighbor has another AS number than expected.
    #[error(
        "BGP neighbor {neighbor} is in AS {received}, expected AS {expected}; set neighbor-as of the Bgp object to \
         {received}, or correct the neighbor"
    )]
    BadPeerAs {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// AS number in the settings.
        expected: u32,
        /// AS number in the neighbor's OPEN.
        received: u32,
    },
    /// The neighbor's OPEN is not acceptable.
    #[error("BGP neighbor {neighbor}: OPEN refused: {cause}")]
    Open {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// What is not acceptable.
        cause: String,
    },
    /// The neighbor announced too many prefixes.
    #[error(
        "BGP neighbor {neighbor} announced more than {limit} prefixes; filter the routes that it sends to this node: a \
         default route is enough"
    )]
    MaxPrefixes {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// Limit in the settings.
        limit: usize,
        /// Family of the prefix that exceeded the limit.
        family: Family,
    },
    /// The neighbor sent a message that cannot be decoded, or that is not allowed now.
    #[error("BGP neighbor {neighbor}: {cause}")]
    Protocol {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// What is wrong.
        cause: String,
    },
    /// The neighbor closed the session.
    #[error("BGP neighbor {neighbor} closed the session: {text}")]
    Notification {
        /// Address of the neighbor.
        neighbor: IpAddr,
        /// Error, with what to do about it.
        text: String,
    },
    /// The speaker was stopped.
    #[error("the BGP speaker is stopped")]
    Stopped,
}

impl Failure {
    /// Failure for a NOTIFICATION of the neighbor.
    pub(crate) fn from_notification(
        neighbor: IpAddr,
        local_as: u32,
        notification: &NotificationMessage,
    ) -> Failure {
        let (code, subcode) = (notification.code, notification.subcode);
        let mut text = description(code, subcode).to_owned();
        if code == NotificationCode::OpenMessage && subcode == open_subcode::BAD_PEER_AS {
            text = format!(
                "{text}: it does not expect AS {local_as}; set as of the Bgp object to the number that the neighbor \
                 expects, or correct the neighbor"
            );
        }
        // RFC 9003; a malformed text is not shown.
        if let Ok(Some(reason)) = extract_shutdown_communication(notification)
            && !reason.is_empty()
        {
            text = format!("{text}: {reason:?}");
        }
        Failure::Notification { neighbor, text }
    }
}
