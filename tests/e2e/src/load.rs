//! Traffic during faults of nodes: datagrams and connections through services, persistent connections, and traffic that
//! rules deny. Lost, broken and wrongly allowed packets are counted; nothing is timed.

mod datagrams;
mod denied;
mod server;
mod streams;
mod worker;

pub use datagrams::{DatagramCount, Datagrams};
pub use denied::{Denied, DeniedCount};
pub use server::Server;
pub use streams::{NewStreamCount, NewStreams, StreamCount, Streams};
pub use worker::Stop;
