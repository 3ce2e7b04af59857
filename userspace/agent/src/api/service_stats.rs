//! `/svcstats`: traffic between clients and services in the JSON format of the original Contiv (INVENTORY 5.7).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::datapath::telemetry::{Connection, Traffic};

/// Statistics by client address.
pub(super) type ServiceStats = BTreeMap<String, Client>;

/// Statistics of one client. `In` counts traffic from the client, `Out` the replies.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Client {
    #[serde(rename = "EndpointIP")]
    endpoint_ip: String,
    vrf_name: String,
    /// Sum over all services.
    port_stats: Stats,
    /// Keyed by service address; further ports of the same address by address, protocol and port.
    svc_stats: BTreeMap<String, Service>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(rename = "ServiceIP")]
    service_ip: String,
    #[serde(rename = "ServiceVRF")]
    service_vrf: String,
    protocol: String,
    svc_port: String,
    prov_port: String,
    svc_stats: Stats,
    /// Keyed by provider address.
    prov_stats: BTreeMap<String, Provider>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Provider {
    #[serde(rename = "ProviderIP")]
    provider_ip: String,
    #[serde(rename = "ServiceIP")]
    service_ip: String,
    service_vrf: String,
    #[serde(flatten)]
    stats: Stats,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Stats {
    packets_in: u64,
    bytes_in: u64,
    packets_out: u64,
    bytes_out: u64,
}

impl Stats {
    fn add(&mut self, request: Traffic, reply: Traffic) {
        self.packets_in += request.packets;
        self.bytes_in += request.bytes;
        self.packets_out += reply.packets;
        self.bytes_out += reply.bytes;
    }
}

/// Aggregates connections by client and service.
pub(super) fn service_stats(connections: &[Connection]) -> ServiceStats {
    let mut sorted: Vec<&Connection> = connections.iter().collect();
    // The first port of an address uses the address alone as its key, like the original Contiv.
    sorted.sort_by_key(|connection| (connection.client, connection.service, connection.protocol));
    let mut stats = ServiceStats::new();
    for connection in sorted {
        let Connection { client, service: (vip, port), backend: (provider, target), protocol, .. } =
            connection;
        let (request, reply) = (connection.to_backend, connection.to_client);
        let client = stats
            .entry(client.to_string())
            .or_insert_with(|| Client { endpoint_ip: client.to_string(), ..Client::default() });
        client.port_stats.add(request, reply);
        let (vip, port, protocol) = (vip.to_string(), port.to_string(), protocol.to_string());
        let another = |known: &Service| (&known.svc_port, &known.protocol) != (&port, &protocol);
        let key = match client.svc_stats.get(&vip) {
            Some(known) if another(known) => format!("{vip}:{protocol}:{port}"),
            _ => vip.clone(),
        };
        let service = client.svc_stats.entry(key).or_insert_with(|| Service {
            service_ip: vip.clone(),
            protocol,
            svc_port: port,
            prov_port: target.to_string(),
            ..Service::default()
        });
        service.svc_stats.add(request, reply);
        let provider = service.prov_stats.entry(provider.to_string()).or_insert_with(|| Provider {
            provider_ip: provider.to_string(),
            service_ip: vip,
            ..Provider::default()
        });
        provider.stats.add(request, reply);
    }
    stats
}

#[cfg(test)]
mod tests {
    use contiv_model::service::Protocol;
    use serde_json::json;

    use super::*;

    fn connection(port: u16, provider: u8, packets: u64) -> Connection {
        Connection {
            client: [10, 1, 1, 1].into(),
            service: ([10, 1, 1, 200].into(), port),
            backend: ([10, 1, 1, provider].into(), 8080),
            protocol: Protocol::Tcp,
            to_backend: Traffic { packets, bytes: packets * 100 },
            to_client: Traffic { packets: 1, bytes: 60 },
        }
    }

    #[test]
    fn format_matches_the_original_and_includes_all_ports() {
        let stats = service_stats(&[connection(443, 2, 5), connection(80, 2, 1), connection(80, 3, 2)]);
        let value = json!(stats);
        let client = &value["10.1.1.1"];
        assert_eq!((&client["EndpointIP"], &client["VrfName"]), (&json!("10.1.1.1"), &json!("")));
        assert_eq!(client["PortStats"]["PacketsIn"], 8);
        let web = &client["SvcStats"]["10.1.1.200"];
        assert_eq!((&web["SvcPort"], &web["ProvPort"]), (&json!("80"), &json!("8080")));
        assert_eq!(
            web["SvcStats"],
            json!({"PacketsIn": 3, "BytesIn": 300, "PacketsOut": 2, "BytesOut": 120})
        );
        assert_eq!(
            web["ProvStats"]["10.1.1.3"],
            json!({"ProviderIP": "10.1.1.3", "ServiceIP": "10.1.1.200", "ServiceVrf": "",
                   "PacketsIn": 2, "BytesIn": 200, "PacketsOut": 1, "BytesOut": 60})
        );
        assert_eq!(client["SvcStats"]["10.1.1.200:TCP:443"]["SvcStats"]["PacketsIn"], 5);
    }
}
