//! HTTP API of the agent: health, metrics, inspection and packet events.

mod admission;
mod listener;
mod metrics;
mod monitor;
mod pod_access;
mod rest;
mod service_stats;
mod trace;

pub use metrics::{
    Condition, CounterSeries, Measurements, Recorded, SeriesTables, encode as encode_metrics,
    reference_page as metrics_reference,
};
pub use monitor::{Monitor, MonitorError};
pub use rest::{Error, Parts, Server};
