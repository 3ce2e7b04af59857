//! The CNI plugin that container runtimes call for each pod, and its protocol with the agent.
//!
//! * [`spec`]: the CNI specification, 0.1.0 to 1.1.0: versions, configuration, arguments, results,
//!   errors.
//! * [`wire`]: the JSON between the plugin and the agent.
//! * [`plugin`]: one invocation of the plugin, from environment and standard input to standard
//!   output.
//!
//! The plugin itself changes nothing on the node; the agent does.

#![deny(missing_docs)]

mod http;
pub mod plugin;
pub mod spec;
pub mod wire;
