//! Metrics of requests to the store.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::{Error, Operation};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    operation: &'static str,
    result: &'static str,
}

/// Durations of requests, by operation and result. Clones share the values.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    durations: Family<Request, Histogram>,
}

impl Default for RequestMetrics {
    fn default() -> RequestMetrics {
        // 0.5 ms to 8 s: a request takes 5 s at most, unless the configuration says otherwise.
        let buckets = || Histogram::new(exponential_buckets(0.0005, 2.0, 15));
        RequestMetrics { durations: Family::new_with_constructor(buckets) }
    }
}

impl RequestMetrics {
    /// Records a request that ended after `duration`, retries included. A transaction whose guards
    /// do not hold is a success.
    pub fn record<T>(&self, operation: Operation, result: &Result<T, Error>, duration: Duration) {
        let result = match result {
            Ok(_) => "ok",
            Err(Error::Timeout { .. }) => "timeout",
            Err(Error::Unreachable { .. }) => "unreachable",
            Err(_) => "refused",
        };
        let labels = Request { operation: label(operation), result };
        self.durations.get_or_create(&labels).observe(duration.as_secs_f64());
    }

    /// Registers the metrics with their current values.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Duration of requests to the store with their retries in seconds, by operation and result (ok, refused, timeout, unreachable)";
        registry.register("store_request_duration_seconds", help, self.durations.clone());
    }
}

fn label(operation: Operation) -> &'static str {
    match operation {
        Operation::Connect => "connect",
        Operation::Get => "get",
        Operation::List => "list",
        Operation::Commit => "commit",
        Operation::Watch => "watch",
        Operation::Grant => "grant",
        Operation::KeepAlive => "keep-alive",
        Operation::TimeToLive => "time-to-live",
        Operation::Revoke => "revoke",
        Operation::Compact => "compact",
        Operation::Status => "status",
    }
}
