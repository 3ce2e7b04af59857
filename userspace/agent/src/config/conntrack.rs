use std::time::Duration;

use clap::Args;
use contiv_abi::Timeouts;

/// Connection tracking.
#[derive(Clone, Debug, Args)]
pub struct ConntrackFlags {
    /// Maximum number of tracked connections, 225 bytes each (eBPF; with OVS and netdev, eight times as many of each network or tenant).
    /// A change takes effect at once if the connections fit
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_MAX", value_name = "CONNECTIONS",
          default_value_t = contiv_abi::maps::FLOWS_CAPACITY as u32,
          value_parser = clap::value_parser!(u32).range(1024..=1 << 24))]
    pub conntrack_max: u32,

    /// Idle timeout of established TCP connections
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_TIMEOUT_TCP", value_name = "TIME", default_value = "8000s",
          value_parser = timeout)]
    pub conntrack_timeout_tcp: Duration,

    /// Idle timeout of TCP connections before the first reply
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_TIMEOUT_TCP_OPENING", value_name = "TIME",
          default_value = "60s", value_parser = timeout)]
    pub conntrack_timeout_tcp_opening: Duration,

    /// Idle timeout of TCP connections that one side has closed
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_TIMEOUT_TCP_HALF_CLOSED", value_name = "TIME",
          default_value = "1h", value_parser = timeout)]
    pub conntrack_timeout_tcp_half_closed: Duration,

    /// Idle timeout of TCP connections after a RST, or a FIN of each side
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_TIMEOUT_TCP_CLOSING", value_name = "TIME",
          default_value = "60s", value_parser = timeout)]
    pub conntrack_timeout_tcp_closing: Duration,

    /// Idle timeout of replied UDP flows
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_TIMEOUT_UDP", value_name = "TIME", default_value = "180s",
          value_parser = timeout)]
    pub conntrack_timeout_udp: Duration,

    /// Idle timeout of replied flows of other protocols
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_TIMEOUT_OTHER", value_name = "TIME", default_value = "180s",
          value_parser = timeout)]
    pub conntrack_timeout_other: Duration,

    /// Idle timeout of unreplied flows other than TCP
    #[arg(long, env = "CONTIV_NETPLUGIN_CONNTRACK_TIMEOUT_UNANSWERED", value_name = "TIME",
          default_value = "30s", value_parser = timeout)]
    pub conntrack_timeout_unanswered: Duration,
}

impl ConntrackFlags {
    pub(super) fn timeouts(&self) -> Timeouts {
        // `timeout` limits the value to 30 days.
        let seconds = |time: Duration| time.as_secs() as u32;
        Timeouts {
            tcp: seconds(self.conntrack_timeout_tcp),
            tcp_opening: seconds(self.conntrack_timeout_tcp_opening),
            tcp_half_closed: seconds(self.conntrack_timeout_tcp_half_closed),
            tcp_closing: seconds(self.conntrack_timeout_tcp_closing),
            udp: seconds(self.conntrack_timeout_udp),
            other: seconds(self.conntrack_timeout_other),
            unanswered: seconds(self.conntrack_timeout_unanswered),
        }
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_hours(30 * 24);
    match humantime::parse_duration(text) {
        Ok(time) if time.subsec_nanos() == 0 && time.as_secs() >= 1 && time <= LONGEST => Ok(time),
        _ => Err("expected whole seconds, 1s to 30days, written as 90s, 30m, 2h or 5days".into()),
    }
}
