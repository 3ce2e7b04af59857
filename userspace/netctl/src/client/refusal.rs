//! Answers without a status of success.

use ureq::{
    Body,
    http::{Response, StatusCode, header},
};

use super::attempt::Method;
use crate::error::Error;

/// Error of an answer without a status of success.
pub(super) fn refusal(method: Method, url: &str, answer: &Response<Body>, text: &str, server: &str) -> Error {
    let (status, is_get, method) = (answer.status(), method == Method::Get, method.as_str());
    if let (true, Some(location)) = (status.is_redirection(), answer.headers().get(header::LOCATION)) {
        let location = String::from_utf8_lossy(location.as_bytes());
        return Error::Refused(format!(
            "{method} {url}: redirected to {location}, which netctl does not follow; check --netmaster"
        ));
    }
    let line = text.lines().next().unwrap_or_default();
    let text =
        if line.is_empty() { format!("{method} {url}: {server} answered {status}") } else { line.to_owned() };
    match status {
        StatusCode::FORBIDDEN => Error::Forbidden(text),
        StatusCode::PRECONDITION_FAILED => Error::Conflict(text),
        status if is_temporary(status) => Error::Unavailable(text),
        // A proxy has no answer of netmaster. A change may have been carried out: it is not one to repeat.
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT if is_get => Error::Unavailable(text),
        _ => Error::Refused(text),
    }
}

/// Whether the same request, also a change, was not carried out and may succeed later.
pub(super) fn is_temporary(status: StatusCode) -> bool {
    [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}
