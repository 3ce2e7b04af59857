//! What the original's daemons are told of the cluster that they are in.

use clap::ValueEnum;

/// Who asks for endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Cni,
    Test,
    Docker,
    Kubernetes,
    SwarmMode,
}

/// Encapsulation that the cluster is meant for.
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
    /// One line if this release cannot be told so.
    pub fn check(self) -> Result<(), String> {
        match self {
            Mode::Cni | Mode::Test => Ok(()),
            Mode::Docker | Mode::Kubernetes | Mode::SwarmMode => {
                Err(format!("--mode {} is not built yet; accepted: cni, test", name(&self)))
            }
        }
    }
}

/// As the command line spells it.
pub fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_built_is_refused_by_its_name() {
        assert_eq!(Mode::Cni.check(), Ok(()));
        let refused = Mode::SwarmMode.check().unwrap_err();
        assert_eq!(refused, "--mode swarm-mode is not built yet; accepted: cni, test");
    }
}
