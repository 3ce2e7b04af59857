use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::{Code, Dns, Error, Version};
use crate::wire::ValidAttachment;

/// The network configuration on standard input: the fields that the plugin uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// Version of the specification, also of the answer.
    pub version: Version,
    /// Name of the network in the runtime; not one of the cluster's networks.
    pub name: String,
    /// Labels from `args.cni.labels`.
    pub labels: BTreeMap<String, String>,
    /// `socket`: the agent's socket, if not the default.
    pub socket: Option<PathBuf>,
    /// `timeout`, in seconds: time limit of the agent's answer.
    pub timeout: Option<Duration>,
    /// `dns`, copied to the result.
    pub dns: Dns,
    /// `prevResult`: result of the previous plugin of the chain, or of the ADD that a CHECK concerns.
    pub prev_result: Option<serde_json::Value>,
    /// `cni.dev/valid-attachments`, for GC. libcni leaves it out, or writes `null`, if no attachment is valid.
    pub valid_attachments: Vec<ValidAttachment>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    #[serde(default)]
    cni_version: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    args: Option<ArgsBody>,
    #[serde(default)]
    socket: Option<PathBuf>,
    #[serde(default)]
    timeout: Option<u64>,
    #[serde(default)]
    dns: Option<Dns>,
    #[serde(default)]
    prev_result: Option<serde_json::Value>,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<ValidAttachment>>,
    /// The only name that libcni 1.2 knows.
    #[serde(default, rename = "cni.dev/attachments")]
    attachments: Option<Vec<ValidAttachment>>,
}

#[derive(Deserialize)]
struct ArgsBody {
    #[serde(default)]
    cni: Option<CniArgs>,
}

#[derive(Deserialize)]
struct CniArgs {
    #[serde(default)]
    labels: Option<Labels>,
}

/// The convention is a list of pairs; users also write a map.
#[derive(Deserialize)]
#[serde(untagged)]
enum Labels {
    List(Vec<Label>),
    Map(BTreeMap<String, String>),
}

#[derive(Deserialize)]
struct Label {
    key: String,
    value: String,
}

impl Conf {
    /// Parses the configuration.
    pub fn parse(text: &[u8]) -> Result<Conf, Error> {
        let decode = |e: serde_json::Error| {
            Error::new(Code::Decode, "the network configuration on standard input is not valid JSON")
                .details(e.to_string())
        };
        let value: serde_json::Value = serde_json::from_slice(text).map_err(decode)?;
        let body: Body = serde_json::from_value(value).map_err(|e| {
            Error::new(Code::Decode, "the network configuration has a field of the wrong type")
                .details(e.to_string())
        })?;
        let version = body.cni_version.parse()?;
        if body.name.is_empty() {
            return Err(Error::new(Code::InvalidConfig, "the network configuration has no name")
                .details("add \"name\": \"contiv-net\" to the file in the CNI configuration directory"));
        }
        let labels = match body.args.and_then(|args| args.cni).and_then(|cni| cni.labels) {
            Some(Labels::Map(map)) => map,
            Some(Labels::List(list)) => list.into_iter().map(|label| (label.key, label.value)).collect(),
            None => BTreeMap::new(),
        };
        Ok(Conf {
            version,
            name: body.name,
            labels,
            socket: body.socket.filter(|path| !path.as_os_str().is_empty()),
            timeout: body.timeout.filter(|seconds| *seconds > 0).map(Duration::from_secs),
            dns: body.dns.unwrap_or_default(),
            prev_result: body.prev_result,
            valid_attachments: body.valid_attachments.or(body.attachments).unwrap_or_default(),
        })
    }
}

/// The version in a configuration that is otherwise invalid, for the answer.
pub(crate) fn version_of(text: &[u8]) -> Option<Version> {
    let value: serde_json::Value = serde_json::from_slice(text).ok()?;
    value.get("cniVersion")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_in_both_forms() {
        let list = r#"{"cniVersion":"1.0.0","name":"n","args":{"cni":{"labels":[{"key":"a","value":"b"}]}}}"#;
        let map = r#"{"cniVersion":"1.0.0","name":"n","args":{"cni":{"labels":{"a":"b"}}}}"#;
        for text in [list, map] {
            let conf = Conf::parse(text.as_bytes()).unwrap();
            assert_eq!(conf.labels.get("a").map(String::as_str), Some("b"));
        }
    }

    #[test]
    fn errors_have_the_code_of_their_cause() {
        for (text, code, what) in [
            ("{", Code::Decode, "not valid JSON"),
            (r#"{"name":7}"#, Code::Decode, "wrong type"),
            (r#"{"cniVersion":"9.9.9","name":"n"}"#, Code::IncompatibleVersion, "\"9.9.9\""),
            (r#"{"cniVersion":"1.0.0"}"#, Code::InvalidConfig, "has no name"),
            (r#"{"cniVersion":"1.0.0","name":"n","args":{"cni":{"labels":[1]}}}"#, Code::Decode, "type"),
        ] {
            let error = Conf::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.code, code, "{text}");
            assert!(error.to_string().contains(what), "{error}");
        }
    }

    #[test]
    fn a_configuration_without_a_version_means_the_first_version() {
        assert_eq!(Conf::parse(br#"{"name":"n"}"#).unwrap().version, Version::V0_1_0);
    }
}
