//! Requests of clients.

use std::borrow::Cow;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    route: Cow<'static, str>,
    method: &'static str,
    code: u16,
}

/// Durations of requests by route, method and status.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    durations: Family<Request, Histogram>,
}

impl Default for RequestMetrics {
    fn default() -> RequestMetrics {
        // 1 ms to 16 s.
        let buckets = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        RequestMetrics { durations: Family::new_with_constructor(buckets) }
    }
}

impl RequestMetrics {
    /// Records a request. `route` is a template: its number of values must be bounded.
    pub fn record(&self, route: Cow<'static, str>, method: &'static str, code: u16, duration: Duration) {
        self.durations.get_or_create(&Request { route, method, code }).observe(duration.as_secs_f64());
    }

    pub(super) fn sample(&self) {
        self.record("/version".into(), "GET", 200, Duration::ZERO);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Duration of requests of clients until the response begins in seconds, by route template, method and status; a forwarded request is counted by both netmasters";
        registry.register("request_duration_seconds", help, self.durations.clone());
    }
}
