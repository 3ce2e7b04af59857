//! What clients learn about failed requests to the store.

use contiv_store::Error;

use crate::problem::Problem;

/// The failure without keys, which may be of another tenant, and without the addresses of etcd. The
/// caller logs the error.
pub fn store_problem(error: &Error) -> Problem {
    let why = if error.is_out_of_space() {
        "the database of etcd has reached its quota (alarm NOSPACE); compact and defragment it, then run `etcdctl alarm disarm`"
    } else if error.is_transient() {
        "no answer"
    } else {
        "the request was refused; see the log of netmaster"
    };
    Problem::unavailable(format!("store: {why}"))
}
