use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

/// TCP port of BGP (RFC 4271 section 8).
const PORT: u16 = 179;
/// RFC 4724 section 3 encodes the restart time in 12 bits.
const MAX_RESTART_TIME: u16 = 4095;

/// Settings of a speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// AS number of the speaker.
    pub local_as: u32,
    /// BGP identifier. It must be unique within the AS.
    pub router_id: Ipv4Addr,
    /// Source address of the connection. Without it the kernel selects one.
    pub source: Option<IpAddr>,
    /// Address and port of the neighbor.
    pub neighbor: SocketAddr,
    /// AS number that the neighbor must have.
    pub neighbor_as: u32,
    /// Next hop of announced IPv4 routes.
    pub next_hop: Ipv4Addr,
    /// Proposed hold time in seconds: 0 (no keepalives), or 3 and more.
    pub hold_time: u16,
    /// Time until the next connection attempt. It doubles with each failure, up to 60 s, also of sessions that end before a third of
    /// their hold time. It does not grow while learnt routes are kept that are not those of the session.
    pub connect_retry: Duration,
    /// Time in seconds that the neighbor keeps routes while the speaker restarts, at most 4095. 0 disables graceful restart.
    pub restart_time: u16,
    /// Whether forwarding continued while the speaker was not running (RFC 4724 section 3, "Restart State").
    pub restarted: bool,
    /// Whether routes of an earlier run may be in use. They stay until the neighbor has sent its own, so they must be those of this
    /// neighbor.
    pub has_earlier_routes: bool,
    /// Time to wait for the neighbor's End-of-RIB markers after the first session is established.
    pub convergence_time: Duration,
    /// Upper limit for keeping stale routes after the neighbor has returned (RFC 4724 section 4.2), and time to wait for the first
    /// session. Longer than the restart times of usual neighbors, since the neighbor's is not known yet.
    pub stale_time: Duration,
    /// Number of prefixes that the neighbor may announce; more close the session.
    pub max_prefixes: usize,
}

/// The speaker cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An AS number is not a number, or reserved.
    #[error(
        "AS number {0:?}: expected 1 to 4294967294 or the form 1.10, and not the reserved 23456 or 65535"
    )]
    AsNumber(String),
    /// Hold times of 1 and 2 seconds are forbidden (RFC 4271 section 4.2).
    #[error("hold time {0} s: expected 0, or 3 to 65535")]
    HoldTime(u16),
    /// The restart time does not fit.
    #[error("restart time {0} s: expected at most 4095")]
    RestartTime(u16),
    /// The router identifier is 0.
    #[error("router ID 0.0.0.0: expected the address of the router")]
    RouterId,
    /// The neighbor cannot be dialed.
    #[error("neighbor {0}: expected a unicast address that differs from the router IP")]
    Neighbor(IpAddr),
}

impl Config {
    /// Settings with the defaults: port 179, hold time 90 s, restart time 120 s, 20,000 prefixes.
    pub fn new(local_as: u32, router: Ipv4Addr, neighbor: IpAddr, neighbor_as: u32) -> Config {
        Config {
            local_as,
            router_id: router,
            source: None,
            neighbor: SocketAddr::new(neighbor, PORT),
            neighbor_as,
            next_hop: router,
            hold_time: 90,
            connect_retry: Duration::from_secs(5),
            restart_time: 120,
            restarted: false,
            has_earlier_routes: true,
            convergence_time: Duration::from_secs(60),
            stale_time: Duration::from_secs(360),
            max_prefixes: 20_000,
        }
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    ///
    /// If a value is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for asn in [self.local_as, self.neighbor_as] {
            check_as(asn).ok_or_else(|| ConfigError::AsNumber(asn.to_string()))?;
        }
        if matches!(self.hold_time, 1 | 2) {
            return Err(ConfigError::HoldTime(self.hold_time));
        }
        if self.restart_time > MAX_RESTART_TIME {
            return Err(ConfigError::RestartTime(self.restart_time));
        }
        if self.router_id.is_unspecified() {
            return Err(ConfigError::RouterId);
        }
        let neighbor = self.neighbor.ip();
        if neighbor.is_unspecified() || neighbor.is_multicast() || self.is_own_address(neighbor) {
            return Err(ConfigError::Neighbor(neighbor));
        }
        Ok(())
    }

    /// Whether both speakers are in one AS (iBGP).
    pub fn is_internal(&self) -> bool {
        self.local_as == self.neighbor_as
    }

    pub(crate) fn is_own_address(&self, address: IpAddr) -> bool {
        address == IpAddr::V4(self.next_hop) || self.source == Some(address)
    }
}

/// Parses an AS number in the forms `asplain` and `asdot` of RFC 5396.
///
/// # Errors
///
/// If the text is not a number of 32 bits, or the number is reserved (RFC 7607, RFC 7300, RFC 6793).
pub fn parse_as(text: &str) -> Result<u32, ConfigError> {
    let number = match text.trim().split_once('.') {
        Some((high, low)) => {
            let (high, low): (Option<u16>, Option<u16>) = (high.parse().ok(), low.parse().ok());
            high.zip(low).map(|(high, low)| u32::from(high) << 16 | u32::from(low))
        }
        None => text.trim().parse().ok(),
    };
    number.and_then(check_as).ok_or_else(|| ConfigError::AsNumber(text.to_owned()))
}

fn check_as(asn: u32) -> Option<u32> {
    const AS_TRANS: u32 = 23456;
    (!matches!(asn, 0 | AS_TRANS | 65535 | u32::MAX)).then_some(asn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_numbers_are_read_in_both_forms() {
        assert_eq!(parse_as("65001"), Ok(65001));
        assert_eq!(parse_as(" 4200000000 "), Ok(4_200_000_000));
        assert_eq!(parse_as("1.10"), Ok(65546));
        for wrong in ["", "x", "-1", "0", "23456", "65535", "4294967295", "4294967296", "1.65536", "1.2.3"] {
            assert_eq!(parse_as(wrong), Err(ConfigError::AsNumber(wrong.into())));
        }
    }

    #[test]
    fn wrong_settings_are_refused() {
        let config = || Config::new(65000, Ipv4Addr::new(10, 0, 0, 1), [10, 0, 0, 2].into(), 65001);
        assert_eq!(config().validate(), Ok(()));
        let change = |change: fn(&mut Config)| {
            let mut config = config();
            change(&mut config);
            config.validate().unwrap_err()
        };
        assert_eq!(change(|config| config.hold_time = 2), ConfigError::HoldTime(2));
        assert_eq!(change(|config| config.restart_time = 4096), ConfigError::RestartTime(4096));
        assert_eq!(change(|config| config.router_id = Ipv4Addr::UNSPECIFIED), ConfigError::RouterId);
        assert_eq!(change(|config| config.local_as = 0), ConfigError::AsNumber("0".into()));
        let own = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(change(|config| config.neighbor.set_ip([10, 0, 0, 1].into())), ConfigError::Neighbor(own));
    }
}
