use std::path::Path;

use contivk8s::plugin;
use serde::Deserialize;
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, net::UnixStream};

/// The error that the plugin prints.
#[derive(Debug, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) code: u32,
    pub(crate) msg: String,
    #[serde(default)]
    pub(crate) details: String,
}

/// An invocation of the plugin.
pub(crate) struct Call<'c> {
    pub(crate) command: &'c str,
    /// Name of the network configuration.
    pub(crate) configuration: &'c str,
    /// More fields of the network configuration, each with a comma.
    pub(crate) fields: &'c str,
    pub(crate) network: &'c str,
    /// More CNI_ARGS, each with a semicolon before it.
    pub(crate) args: &'c str,
    pub(crate) container: &'c str,
    pub(crate) ifname: &'c str,
    /// Empty if the namespace does not exist.
    pub(crate) netns: &'c str,
}

impl Call<'_> {
    /// A command for no container.
    pub(crate) const fn new(command: &str) -> Call<'_> {
        let (network, args, container, netns) = ("n", "", "", "");
        Call { command, configuration: "test", fields: "", network, args, container, ifname: "eth0", netns }
    }

    pub(crate) async fn send(&self, socket: &Path) -> Result<Value, Refusal> {
        let Call { command, configuration, fields, network, args, container, ifname, netns } = self;
        let conf = format!(
            r#"{{{fields}"cniVersion":"1.1.0","name":"{configuration}","type":"contivk8s","socket":"{}"}}"#,
            socket.display()
        );
        let env = [
            ("CNI_COMMAND", (*command).to_owned()),
            ("CNI_CONTAINERID", (*container).to_owned()),
            ("CNI_IFNAME", (*ifname).to_owned()),
            ("CNI_NETNS", (*netns).to_owned()),
            ("CNI_ARGS", format!("TENANT=t;NETWORK={network}{args}")),
        ];
        let get = move |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        let outcome = tokio::task::spawn_blocking(move || plugin::run(get, conf.as_bytes())).await.unwrap();
        match (outcome.status, outcome.stdout.as_str()) {
            (0, "") => Ok(Value::Null),
            (0, text) => Ok(serde_json::from_str(text).unwrap()),
            (_, text) => Err(serde_json::from_str(text).unwrap()),
        }
    }
}

/// Sends an ADD without waiting for the response.
pub(crate) async fn begin_add(socket: &Path, container: &str, netns: &Path) -> UnixStream {
    let body = serde_json::json!({
        "CNI_CONTAINERID": container, "CNI_NETNS": netns, "CNI_IFNAME": "eth0",
        "labels": { "io.contiv.tenant": "t", "io.contiv.network": "n" },
    })
    .to_string();
    let request = format!(
        "POST /ContivCNI.AddPod HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}
