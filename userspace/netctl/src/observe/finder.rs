//! The ends of a connection by name or address.

use std::net::IpAddr;

use contiv_model::api::{EndpointInspect, EndpointOper, Network};

use crate::{
    client::Client,
    error::Error,
    observe::{
        endpoint::{self, read},
        policy_trace::Peer,
    },
};

/// Resolves the source and destination of the command line.
pub struct Finder<'a> {
    client: &'a Client,
    networks: Vec<Network>,
    tenant: Option<&'a str>,
}

impl<'a> Finder<'a> {
    /// Searches these networks, and those of the tenant for names.
    pub fn new(client: &'a Client, networks: Vec<Network>, tenant: Option<&'a str>) -> Finder<'a> {
        Finder { client, networks, tenant }
    }

    /// Resolves names before addresses: the network of a named endpoint disambiguates an address.
    pub fn peers(&self, from: &str, to: &str, ipv6: bool) -> Result<(Peer, Peer), Error> {
        let address = |text: &str| text.parse::<IpAddr>().ok();
        let v6 = ipv6 || [from, to].into_iter().filter_map(address).any(|address| address.is_ipv6());
        // Another endpoint may have the same name.
        let candidates = match [from, to].into_iter().any(|text| address(text).is_none()) {
            true => self.on_networks(|_| true)?,
            false => vec![],
        };
        let named = |text: &str| match address(text) {
            Some(_) => Ok(None),
            None => self.by_name(text, &candidates).and_then(|endpoint| peer(endpoint, v6)).map(Some),
        };
        let (mut source, mut destination) = (named(from)?, named(to)?);
        let network = |peer: &Option<Peer>| Some(peer.as_ref()?.endpoint.as_ref()?.network.clone());
        if let Some(address) = address(from) {
            source = Some(self.by_address(address, network(&destination))?);
        }
        if let Some(address) = address(to) {
            destination = Some(self.by_address(address, network(&source))?);
        }
        match (source, destination) {
            (Some(source), Some(destination))
                if source.address.is_ipv6() == destination.address.is_ipv6() =>
            {
                Ok((source, destination))
            }
            _ => Err(Error::Usage(format!("--from {from} --to {to}: one is IPv4, the other IPv6"))),
        }
    }

    /// Finds the endpoint with this id or container's id, or, if there is none, with this container's name.
    fn by_name(&self, name: &str, candidates: &[EndpointOper]) -> Result<EndpointOper, Error> {
        let mut found: Vec<&EndpointOper> = candidates.iter().filter(|e| has_id(e, name)).collect();
        if found.is_empty() {
            found.extend(candidates.iter().filter(|e| e.container_name == name));
        }
        match found.as_slice() {
            [] => self.unlisted(name),
            [one] => Ok((*one).clone()),
            [first, second, ..] => Err(ambiguous(name, first, second)),
        }
    }

    /// Asks for an endpoint that the networks do not have. netmaster answers with one that has a similar name if none is equal.
    fn unlisted(&self, name: &str) -> Result<EndpointOper, Error> {
        let found = match self.tenant {
            Some(_) => None,
            None => match self.client.inspect("endpoint", name) {
                Ok(answer) => Some(read::<EndpointInspect>(answer, "endpoints")?.oper),
                Err(Error::Refused(message)) if message == "endpoint not found" => None,
                Err(error) => return Err(error),
            },
        };
        match found {
            Some(endpoint) if has_id(&endpoint, name) || endpoint.container_name == name => Ok(endpoint),
            Some(like) => {
                Err(Error::Refused(format!("no endpoint {name}; did you mean {}?", like.endpoint_id)))
            }
            None => Err(Error::Refused(format!("no endpoint {name}"))),
        }
    }

    /// Whether a node other than `host` has an endpoint with the address on a VLAN network, of any tenant: nodes that route VLAN
    /// networks reach all of them.
    pub fn is_elsewhere(&self, address: IpAddr, host: &str) -> Result<bool, Error> {
        let networks = endpoint::networks(self.client, None)?;
        let vlans = networks.iter().filter(|network| network.encap == "vlan");
        let endpoints = endpoint::endpoints(self.client, vlans)?;
        Ok(endpoints.iter().any(|endpoint| endpoint.homing_host != host && has_address(endpoint, address)))
    }

    /// Finds the endpoint with the address on the network, or on any network. Without one, the address is external.
    pub fn by_address(&self, address: IpAddr, network: Option<String>) -> Result<Peer, Error> {
        let mut found = self.on_networks(|it| match &network {
            Some(id) => *id == format!("{}.{}", it.network_name, it.tenant_name),
            None => true,
        })?;
        found.retain(|endpoint| has_address(endpoint, address));
        if let [first, second, ..] = &found[..] {
            return Err(ambiguous(&address.to_string(), first, second));
        }
        Ok(Peer { address, endpoint: found.pop() })
    }

    fn on_networks(&self, which: impl Fn(&Network) -> bool) -> Result<Vec<EndpointOper>, Error> {
        endpoint::endpoints(self.client, self.networks.iter().filter(|network| which(network)))
    }
}

fn has_id(endpoint: &EndpointOper, id: &str) -> bool {
    endpoint.endpoint_id == id || endpoint.container_id == id
}

fn has_address(endpoint: &EndpointOper, address: IpAddr) -> bool {
    endpoint.ip_address.iter().any(|text| text.parse() == Ok(address))
}

fn ambiguous(text: &str, first: &EndpointOper, second: &EndpointOper) -> Error {
    Error::Usage(format!(
        "{text} is ambiguous: {} on {} and {} on {}; use an endpoint id or --tenant",
        first.endpoint_id, first.network, second.endpoint_id, second.network
    ))
}

fn peer(endpoint: EndpointOper, v6: bool) -> Result<Peer, Error> {
    let text = &endpoint.ip_address[usize::from(v6)];
    match text.parse() {
        Ok(address) => Ok(Peer { address, endpoint: Some(endpoint) }),
        Err(_) => Err(Error::Refused(format!(
            "endpoint {} has no {} address",
            endpoint.endpoint_id,
            if v6 { "IPv6" } else { "IPv4" }
        ))),
    }
}
