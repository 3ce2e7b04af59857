use std::{fmt, time::Duration};

use contivk8s::spec::Code;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::failure::Failure;

/// CNI command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Verb {
    /// Attach an endpoint.
    Add,
    /// Detach an endpoint.
    Del,
    /// Check an endpoint.
    Check,
    /// Check whether an ADD can succeed.
    Status,
    /// Delete attachments that the runtime does not know.
    Gc,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Status => "STATUS",
            Verb::Gc => "GC",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: Verb,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finished {
    verb: Verb,
    result: &'static str,
}

/// Durations and failures of CNI requests.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    durations: Family<Finished, Histogram>,
    failures: Family<Request, Counter>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        // 1 ms to 16 s.
        let buckets = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        RequestMetrics { durations: Family::new_with_constructor(buckets), failures: Family::default() }
    }
}

impl RequestMetrics {
    /// Records a finished request.
    pub fn record<T>(&self, verb: Verb, duration: Duration, result: &Result<T, Failure>) {
        let label = match result {
            Ok(_) => "ok",
            Err(failure) if failure.code == Code::TryAgain => "retry",
            Err(_) => "failed",
        };
        self.durations.get_or_create(&Finished { verb, result: label }).observe(duration.as_secs_f64());
        if result.is_err() {
            self.failures.get_or_create(&Request { verb }).inc();
        }
    }

    /// Registers the metrics with their current values.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Duration of CNI requests in seconds, by verb and result (ok, failed; retry: the runtime is asked to repeat the request)";
        registry.register("cni_duration_seconds", help, self.durations.clone());
        registry.register("cni_failures", "Failed CNI requests", self.failures.clone());
    }
}
