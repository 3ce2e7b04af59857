use std::collections::BTreeMap;

use super::{Code, Error};
use crate::wire::labels;

/// `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`.
///
/// Unknown keys are ignored, regardless of `IgnoreUnknown`: other plugins of the runtime get the
/// same variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// `K8S_POD_NAME`.
    pub pod_name: String,
    /// `K8S_POD_NAMESPACE`.
    pub pod_namespace: String,
    /// `K8S_POD_INFRA_CONTAINER_ID`.
    pub infra_container: String,
    /// Labels: every `io.contiv.*` key, and `TENANT`, `NETWORK`, `GROUP` for the three known ones.
    pub labels: BTreeMap<String, String>,
}

impl Args {
    /// Parses the value of the variable.
    pub fn parse(text: &str) -> Result<Args, Error> {
        let mut args = Args::default();
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(Error::new(Code::InvalidEnvironment, format!("CNI_ARGS: {pair:?} has no '='"))
                    .details("the form is KEY=VALUE;KEY=VALUE"));
            };
            args.take(key.trim(), value.trim());
        }
        Ok(args)
    }

    fn take(&mut self, key: &str, value: &str) {
        let label = match key {
            "K8S_POD_NAME" => return value.clone_into(&mut self.pod_name),
            "K8S_POD_NAMESPACE" => return value.clone_into(&mut self.pod_namespace),
            "K8S_POD_INFRA_CONTAINER_ID" => return value.clone_into(&mut self.infra_container),
            "TENANT" => labels::TENANT,
            "NETWORK" => labels::NETWORK,
            "GROUP" => labels::GROUP,
            key if key.starts_with(labels::PREFIX) => key,
            _ => return,
        };
        self.labels.insert(label.to_owned(), value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_arguments() {
        let args = Args::parse(
            "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p1;K8S_POD_INFRA_CONTAINER_ID=cid-p1",
        )
        .unwrap();
        assert_eq!(
            (args.pod_name.as_str(), args.pod_namespace.as_str(), args.infra_container.as_str()),
            ("p1", "default", "cid-p1")
        );
        assert!(args.labels.is_empty());
    }

    #[test]
    fn labels_in_both_spellings() {
        let args = Args::parse("TENANT=blue; io.contiv.network=n1 ;GROUP=;X=y").unwrap();
        let labels: Vec<_> = args.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            labels,
            [("io.contiv.net-group", ""), ("io.contiv.network", "n1"), ("io.contiv.tenant", "blue")]
        );
    }

    #[test]
    fn a_key_without_a_value_is_named() {
        let error = Args::parse("A=b;nonsense").unwrap_err();
        assert_eq!(error.code, Code::InvalidEnvironment);
        assert!(error.msg.contains("\"nonsense\""), "{error}");
        assert_eq!(Args::parse("").unwrap(), Args::default());
    }
}
