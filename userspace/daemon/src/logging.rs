//! Log output.

use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Lowest severity that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    #[value(alias = "warning")]
    Warn,
    #[value(aliases = ["fatal", "panic"])]
    Error,
}

/// The socket to syslog cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("--syslog-url udp://{address}")]
pub struct SyslogError {
    address: SocketAddr,
    source: io::Error,
}

/// Log settings in a daemon's flags.
#[derive(Clone, Copy, Debug)]
pub struct Logging {
    pub level: LogLevel,
    pub json: bool,
    /// Address of syslog; standard error if `None`.
    pub syslog: Option<SocketAddr>,
}

impl Logging {
    /// Starts logging. The level applies to the crates `ours`; libraries are logged from level
    /// warn.
    pub fn start(self, program: &'static str, ours: &[&'static str]) -> Result<(), SyslogError> {
        let level = match self.level {
            LogLevel::Trace => LevelFilter::TRACE,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Error => LevelFilter::ERROR,
        };
        let writer = match self.syslog {
            Some(address) => BoxMakeWriter::new(Syslog::to(address, program)?),
            None => BoxMakeWriter::new(io::stderr),
        };
        let ours = [program, "contiv_daemon", "contiv_store", "contiv_model"]
            .into_iter()
            .chain(ours.iter().copied());
        let ours = ours.map(|target| (target, level));
        let filter = Targets::new().with_targets(ours).with_default(level.min(LevelFilter::WARN));
        let lines = fmt::layer().with_writer(writer).with_ansi(false);
        let lines = match self.json {
            true => lines.json().boxed(),
            false => lines.boxed(),
        };
        tracing_subscriber::registry().with(lines.with_filter(filter)).init();
        Ok(())
    }
}

/// Parses `udp://IP:PORT`.
pub fn syslog_url(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("udp://").and_then(|address| address.parse().ok());
    address.ok_or_else(|| "expected udp://IP:PORT; other transports are not built".into())
}

/// Defines `LogFlags` of a daemon, with environment variables that begin with the prefix;
/// [`LogFlags::logging`] returns the settings.
///
/// [`LogFlags::logging`]: Logging
#[macro_export]
macro_rules! log_flags {
    ($prefix:literal) => {
        #[derive(Clone, Debug, clap::Args)]
        pub struct LogFlags {
            /// Lowest severity that is logged
            #[arg(long, env = concat!($prefix, "LOG_LEVEL"), default_value = "info", value_enum, ignore_case = true)]
            pub log_level: $crate::logging::LogLevel,

            /// Log in JSON
            #[arg(
                long,
                env = concat!($prefix, "USE_JSON_LOG"),
                value_parser = clap::builder::FalseyValueParser::new()
            )]
            pub use_json_log: bool,

            /// Log to syslog instead of standard error
            #[arg(
                long,
                env = concat!($prefix, "USE_SYSLOG"),
                value_parser = clap::builder::FalseyValueParser::new()
            )]
            pub use_syslog: bool,

            /// Address of syslog: udp://IP:PORT
            #[arg(
                long,
                env = concat!($prefix, "SYSLOG_URL"),
                default_value = "udp://127.0.0.1:514",
                value_parser = $crate::logging::syslog_url
            )]
            pub syslog_url: std::net::SocketAddr,
        }

        impl LogFlags {
            pub fn logging(&self) -> $crate::logging::Logging {
                $crate::logging::Logging {
                    level: self.log_level,
                    json: self.use_json_log,
                    syslog: self.use_syslog.then_some(self.syslog_url),
                }
            }
        }
    };
}

/// Sends each line as a datagram of RFC 3164.
struct Syslog {
    socket: UdpSocket,
    program: &'static str,
    pid: u32,
}

/// The facility "daemon" of RFC 3164.
const FACILITY: u8 = 3;

impl Syslog {
    fn to(address: SocketAddr, program: &'static str) -> Result<Syslog, SyslogError> {
        let local: SocketAddr = match address {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(local)
            .and_then(|socket| socket.connect(address).map(|()| socket))
            .map_err(|source| SyslogError { address, source })?;
        Ok(Syslog { socket, program, pid: std::process::id() })
    }

    fn line(&self, severity: u8) -> Line<'_> {
        let tag = format!("<{}>{}[{}]: ", FACILITY * 8 + severity, self.program, self.pid);
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
        // Sending fails if syslog does not listen, and there is no other place to report it.
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
        let syslog = Syslog::to(daemon.local_addr().unwrap(), "netmaster").unwrap();
        writeln!(syslog.line(4), "disk {}% full", 99).unwrap();
        let mut buffer = [0; 100];
        let n = daemon.recv(&mut buffer).unwrap();
        let expected = format!("<28>netmaster[{}]: disk 99% full", std::process::id());
        assert_eq!(std::str::from_utf8(&buffer[..n]).unwrap(), expected);
    }
}
