//! The log of the stages that the frames of one endpoint pass (`--bpf-log-stages`).

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, MapData},
};
use aya_log::EbpfLogger;
use contiv_abi::{Address, DropReason, LogResult, LogStage, LoggedEndpoint, maps::LOGGED};
use log::{Log, Metadata, Record};

use crate::datapath::{
    Error, Object,
    ebpf::{device, failure::failed},
};

/// Interval between two reads of the ring buffer, which holds about 500 records.
const INTERVAL: Duration = Duration::from_millis(20);

/// The endpoint whose frames are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEndpoint {
    /// The endpoint with this address.
    Address(IpAddr),
    /// The local endpoint with this interface.
    Interface(String),
}

impl From<&str> for LogEndpoint {
    fn from(text: &str) -> Self {
        text.parse().map_or_else(|_| LogEndpoint::Interface(text.to_owned()), LogEndpoint::Address)
    }
}

impl std::fmt::Display for LogEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LogEndpoint::Address(ip) => ip.fmt(f),
            LogEndpoint::Interface(name) => f.write_str(name),
        }
    }
}

/// The log of the loaded programs. It ends when the value is dropped.
pub(crate) struct StageLog {
    endpoint: LogEndpoint,
    map: Array<MapData, LoggedEndpoint>,
    written: LoggedEndpoint,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for StageLog {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StageLog {
    /// Forwards the log of the programs in `object` to the agent's log.
    pub(crate) fn new(endpoint: LogEndpoint, object: &mut Ebpf) -> Result<StageLog, Error> {
        let what = || format!("open the map {LOGGED}");
        let map = object.take_map(LOGGED).ok_or_else(|| failed(what(), "the object does not contain it"))?;
        let map = map.try_into().map_err(|error| failed(what(), error))?;
        let what = || "open the log of the eBPF programs";
        let logger =
            EbpfLogger::init_with_logger(object, ToTracing).map_err(|error| failed(what(), error))?;
        let task = tokio::spawn(forward(logger));
        Ok(StageLog { endpoint, map, written: LoggedEndpoint::default(), task })
    }

    /// Selects the endpoint, if it is one of the objects.
    pub(crate) fn select<'a>(&mut self, objects: impl Iterator<Item = &'a Object>) -> Result<(), Error> {
        let mut logged = self.written;
        match &self.endpoint {
            LogEndpoint::Interface(name) => logged.ifindex = device::ifindex(name).unwrap_or(0),
            LogEndpoint::Address(ip) => {
                logged.ip = address(*ip);
                for object in objects {
                    if let Object::Local(local) = object
                        && local.addresses.contains(*ip)
                    {
                        logged.ifindex = device::ifindex(&local.port).unwrap_or(0);
                    }
                }
            }
        }
        if logged != self.written {
            self.map
                .set(0, logged, 0)
                .map_err(|error| failed(format!("write to the map {LOGGED}"), error))?;
            self.written = logged;
        }
        Ok(())
    }
}

fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(ip) => Address::v4(ip.octets()),
        IpAddr::V6(ip) => Address(ip.octets()),
    }
}

async fn forward(mut logger: EbpfLogger<ToTracing>) {
    let mut interval = tokio::time::interval(INTERVAL);
    loop {
        interval.tick().await;
        logger.flush();
    }
}

/// Writes records of the programs to the agent's log.
struct ToTracing;

impl Log for ToTracing {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        let line = describe(&text).unwrap_or(text);
        tracing::info!("stage {line}");
    }

    fn flush(&self) {}
}

/// The text of a record, whose words are stage, result, source address and port, destination address and port, and
/// protocol.
fn describe(record: &str) -> Option<String> {
    let mut words = record.split(' ');
    let stage = LogStage::text(words.next()?.parse().ok()?)?;
    let result: u32 = words.next()?.parse().ok()?;
    let reason = || DropReason::ALL.iter().find(|reason| **reason as u32 == result);
    let result = match LogResult::text(result) {
        Some(text) => text.to_owned(),
        None => format!("dropped, {}", reason()?.as_str()),
    };
    let mut end = || Some((words.next()?.parse::<Ipv6Addr>().ok()?, words.next()?));
    let ((source, source_port), (destination, port)) = (end()?, end()?);
    let protocol = words.next()?;
    if source.is_unspecified() && destination.is_unspecified() {
        return Some(format!("{stage}: {result}"));
    }
    let (source, destination) = (source.to_canonical(), destination.to_canonical());
    Some(format!(
        "{stage}: {result}: {source} port {source_port} to {destination} port {port}, protocol {protocol}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_described() {
        let new = "2 259 ::ffff:10.1.1.1 1000 ::ffff:10.1.1.2 53 17";
        assert_eq!(
            describe(new).as_deref(),
            Some("track: no flow: 10.1.1.1 port 1000 to 10.1.1.2 port 53, protocol 17")
        );
        assert_eq!(describe("6 16 :: 0 :: 0 0").as_deref(), Some("verdict: dropped, policy"));
        assert_eq!(describe("6 99 :: 0 :: 0 0"), None);
    }
}
