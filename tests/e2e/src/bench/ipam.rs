use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::{etcd::Etcd, free_port, scratch_dir};

use super::{
    latency::{Latency, in_parallel},
    raw,
    report::Report,
};
use crate::{
    cluster::StoreKind,
    http::Client,
    master::{Master, Options as MasterOptions, Store},
    progress::step,
};

const ENDPOINTS: &str = "/contiv.io/state/eps/";
const STATE: &str = "/contiv.io/";
const GROUP: &str = "group";
const RULES: usize = 50;
const SERVICES: usize = 50;
const SUBNETS: [&str; 2] = ["10.16.0.0/16", "10.16.0.0/12"];

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Numbers of concurrent clients, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    clients: Vec<usize>,
    /// Measure without policies and services
    #[arg(long)]
    plain: bool,
    /// Store to measure [default: all]
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
}

impl Default for Options {
    fn default() -> Options {
        Options { seconds: 4, clients: vec![1, 16, 64], plain: false, store: None }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Ipam {
    rows: Vec<Row>,
}

/// Clients that create endpoints in one network, and the store alone under the same load.
#[derive(Debug, Serialize)]
struct Row {
    store: &'static str,
    subnet: &'static str,
    clients: usize,
    create_endpoint: Latency,
    /// Transactions with the writes of one createEndpoint, sent to the store directly.
    transaction: Latency,
    puts_per_transaction: usize,
    bytes_per_transaction: usize,
    /// Requests that do not read the store, by the same clients.
    get_version: Latency,
}

pub(super) fn measure(options: &Options) -> Result<Ipam> {
    let kinds = match options.store {
        Some(kind) => vec![kind],
        None => vec![StoreKind::Etcd, StoreKind::Embedded],
    };
    let mut rows = vec![];
    for kind in kinds {
        measure_store(kind, options, &mut rows)?;
    }
    Ok(Ipam { rows })
}

fn measure_store(kind: StoreKind, options: &Options, rows: &mut Vec<Row>) -> Result<()> {
    let folder = scratch_dir("bench")?;
    // With fsync, as in production; stops after netmaster.
    let etcd = match kind {
        StoreKind::Etcd => {
            Some(Etcd::options().fsync(true).argument("--quota-backend-bytes=8589934592").start()?)
        }
        StoreKind::Embedded => None,
    };
    let store = match &etcd {
        Some(etcd) => Store::Etcd { endpoint: etcd.endpoint() },
        None => Store::Embedded {
            folder: folder.path().join("store"),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
        },
    };
    let master = Master::start(MasterOptions::alone(store)?)?;
    let raw = raw::Store::connect(&master.store().endpoint())?;
    for subnet in SUBNETS {
        for &clients in &options.clients {
            let name = match kind {
                StoreKind::Etcd => "etcd",
                StoreKind::Embedded => "embedded",
            };
            let what = format!("{name}, {subnet}, {clients} clients");
            rows.push(step(&what, || measure_row(name, &master, &raw, subnet, clients, options))?);
        }
    }
    Ok(())
}

fn measure_row(
    store: &'static str,
    master: &Master,
    raw: &raw::Store,
    subnet: &'static str,
    clients: usize,
    options: &Options,
) -> Result<Row> {
    let duration = Duration::from_secs(options.seconds);
    let tenant = format!("bench{}x{clients}", subnet.rsplit('/').next().unwrap_or_default());
    let network = NetworkName { tenant, group: if options.plain { "" } else { GROUP } };
    network.create(master.client(), subnet)?;
    if !options.plain {
        network.create_objects(master.client())?;
    }
    // A single request shows the writes of a request, which are one transaction.
    let writes = raw.observe(STATE, ENDPOINTS, || network.create_endpoint(master.client(), "first"))?;
    let create_endpoint = in_parallel(clients, duration, |client, round| {
        network.create_endpoint(master.client(), &format!("ep-{client}-{round}"))
    })?;
    let get_version =
        in_parallel(clients, Duration::from_secs(1), |_, _| master.client().get("/version").map(drop))?;
    Ok(Row {
        store,
        subnet,
        clients,
        create_endpoint,
        transaction: raw.transactions(&writes, clients, duration)?,
        puts_per_transaction: writes.puts(),
        bytes_per_transaction: writes.bytes(),
        get_version,
    })
}

struct NetworkName {
    tenant: String,
    /// Group of the endpoints, or empty.
    group: &'static str,
}

impl NetworkName {
    fn create(&self, client: &Client, subnet: &str) -> Result<()> {
        let tenant = &self.tenant;
        client.post_json(&format!("/api/v1/tenants/{tenant}/"), &json!({ "tenantName": tenant }))?;
        let network =
            json!({ "tenantName": tenant, "networkName": "bench", "encap": "vlan", "subnet": subnet });
        client.post_json(&format!("/api/v1/networks/{tenant}:bench/"), &network).map(drop)
    }

    /// Creates a policy on the group of all endpoints, and services.
    fn create_objects(&self, client: &Client) -> Result<()> {
        let (tenant, group) = (&self.tenant, self.group);
        client.post_json(
            &format!("/api/v1/policys/{tenant}:policy/"),
            &json!({ "tenantName": tenant, "policyName": "policy" }),
        )?;
        for number in 1..=RULES {
            let rule = json!({
                "tenantName": tenant, "policyName": "policy", "ruleId": number.to_string(), "priority": 1,
                "direction": "in", "protocol": "tcp", "port": 1000 + number, "action": "allow",
            });
            client.post_json(&format!("/api/v1/rules/{tenant}:policy:{number}/"), &rule)?;
        }
        let body = json!({
            "tenantName": tenant, "groupName": group, "networkName": "bench", "policies": ["policy"],
        });
        client.post_json(&format!("/api/v1/endpointGroups/{tenant}:{group}/"), &body)?;
        for number in 0..SERVICES {
            let service = json!({
                "tenantName": tenant, "serviceName": format!("svc{number}"), "networkName": "bench",
                "selectors": [format!("app=a{number}")], "ports": ["80:8080:TCP"],
            });
            client.post_json(&format!("/api/v1/serviceLBs/{tenant}:svc{number}/"), &service)?;
        }
        Ok(())
    }

    fn create_endpoint(&self, client: &Client, id: &str) -> Result<()> {
        let endpoint = json!({
            "TenantName": self.tenant,
            "NetworkName": "bench",
            "EndpointID": id,
            "ConfigEP": { "Container": id, "Host": "h1", "ServiceName": self.group },
        });
        client
            .post_json("/plugin/createEndpoint", &endpoint)
            .map(drop)
            .with_context(|| format!("endpoint {id}"))
    }
}

impl Report for Ipam {
    fn title(&self) -> String {
        "createEndpoint, compared with transactions of the same size sent to the store directly (same store, same run)".to_owned()
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "store",
            "subnet",
            "clients",
            "created/s",
            "p50 ms",
            "p99 ms",
            "store txn/s",
            "p50 ms",
            "p99 ms",
            "ratio",
            "puts, bytes",
            "GET /s",
        ]);
        for row in &self.rows {
            table.add_row([
                row.store.to_owned(),
                row.subnet.to_owned(),
                row.clients.to_string(),
                format!("{:.0}", row.create_endpoint.per_second),
                format!("{:.2}", row.create_endpoint.p50_ms),
                format!("{:.2}", row.create_endpoint.p99_ms),
                format!("{:.0}", row.transaction.per_second),
                format!("{:.2}", row.transaction.p50_ms),
                format!("{:.2}", row.transaction.p99_ms),
                format!("{:.2}", row.create_endpoint.per_second / row.transaction.per_second),
                format!("{}, {}", row.puts_per_transaction, row.bytes_per_transaction),
                format!("{:.0}", row.get_version.per_second),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
