//! Where log lines go.

use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFlags, LogLevel};

/// Starts logging as the flags say.
pub fn start(flags: &LogFlags) -> anyhow::Result<()> {
    let level = match flags.log_level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    };
    let writer = match flags.use_syslog {
        true => BoxMakeWriter::new(Syslog::to(flags.syslog_url)?),
        false => BoxMakeWriter::new(io::stderr),
    };
    // The level is for what we say; of the libraries, only what went wrong.
    let ours = ["netplugin", "contiv_store", "contiv_model", "openflow"].map(|target| (target, level));
    let filter = Targets::new().with_targets(ours).with_default(level.min(LevelFilter::WARN));
    let lines = fmt::layer().with_writer(writer).with_ansi(false);
    let lines = match flags.use_json_log {
        true => lines.json().boxed(),
        false => lines.boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(())
}

/// Sends each line as a datagram of RFC 3164.
struct Syslog {
    socket: UdpSocket,
    pid: u32,
}

/// "daemon" of RFC 3164.
const FACILITY: u8 = 3;

impl Syslog {
    fn to(address: SocketAddr) -> anyhow::Result<Syslog> {
        let local: SocketAddr = match address {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(local)
            .and_then(|socket| socket.connect(address).map(|()| socket))
            .map_err(|e| anyhow::anyhow!("--syslog-url udp://{address}: {e}"))?;
        Ok(Syslog { socket, pid: std::process::id() })
    }

    fn line(&self, severity: u8) -> Line<'_> {
        let tag = format!("<{}>netplugin[{}]: ", FACILITY * 8 + severity, self.pid);
        Line { to: &self.socket, text: tag.into_bytes() }
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        self.line(6)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line<'a> {
        self.line(match *meta.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        })
    }
}

struct Line<'a> {
    to: &'a UdpSocket,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        // Nobody may be listening, and there is nowhere else to say so.
        let _lost = self.to.send(self.text.trim_ascii_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_datagram() {
        let daemon = UdpSocket::bind("127.0.0.1:0").unwrap();
        daemon.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let syslog = Syslog::to(daemon.local_addr().unwrap()).unwrap();
        writeln!(syslog.line(4), "disk {}% full", 99).unwrap();
        let mut buffer = [0; 100];
        let n = daemon.recv(&mut buffer).unwrap();
        let expected = format!("<28>netplugin[{}]: disk 99% full", std::process::id());
        assert_eq!(std::str::from_utf8(&buffer[..n]).unwrap(), expected);
    }
}
