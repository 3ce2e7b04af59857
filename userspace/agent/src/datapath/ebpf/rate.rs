//! Bandwidth limits of groups by queueing disciplines. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`limit`] | a limit, and its encoding for `tbf` and `htb` |
//! | [`qdisc`] | queueing disciplines in the kernel |
//! | [`queues`] | the queue of each port |

pub(crate) mod limit;
pub(crate) mod qdisc;
pub(crate) mod queues;
