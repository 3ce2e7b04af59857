//! Cluster-wide modes in the flags of the original's daemons.

use clap::ValueEnum;

/// Orchestrator that requests endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Cni,
    Test,
    Docker,
    Kubernetes,
    SwarmMode,
}

/// Encapsulation of the cluster's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetMode {
    Vlan,
    Vxlan,
}

/// How nodes forward between pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FwdMode {
    Bridge,
    Routing,
}

impl Mode {
    /// Fails with one line if this release does not support the mode.
    pub fn check(self) -> Result<(), String> {
        match self {
            Mode::Cni | Mode::Test => Ok(()),
            Mode::Docker | Mode::Kubernetes | Mode::SwarmMode => {
                Err(format!("--mode {} is not built yet; accepted: cni, test", name(&self)))
            }
        }
    }
}

/// The value as the command line spells it.
pub fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_modes_are_refused() {
        assert_eq!(Mode::Cni.check(), Ok(()));
        let refused = Mode::SwarmMode.check().unwrap_err();
        assert_eq!(refused, "--mode swarm-mode is not built yet; accepted: cni, test");
    }
}
