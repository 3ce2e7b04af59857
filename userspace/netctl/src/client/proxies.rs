//! Proxies that the environment sets, as Go's `http.ProxyFromEnvironment` reads it, which the original uses.

use std::{env, net::IpAddr};

use ipnet::IpNet;
use ureq::{Proxy, ProxyProtocol, http::Uri};

use crate::error::Error;

/// Proxies by scheme, and hosts that are reached without one.
pub(super) struct Proxies {
    http: Option<Setting>,
    https: Option<Setting>,
    exceptions: Vec<Exception>,
}

/// URL of a proxy. It may have a password.
struct Setting {
    variable: &'static str,
    url: String,
}

/// Entry of `NO_PROXY`. Texts are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    All,
    Subnet(IpNet),
    /// An address, with any port if there is none.
    Address(IpAddr, Option<u16>),
    /// A domain, with any port if there is none.
    Domain {
        /// Suffix of the names in the domain, from the dot before it on.
        suffix: String,
        /// Whether the domain itself belongs to the entry.
        with_itself: bool,
        port: Option<u16>,
    },
}

impl Proxies {
    /// Reads the environment of the process.
    pub(super) fn from_env() -> Proxies {
        Proxies::read(|name| env::var(name).ok())
    }

    /// A variable in upper case goes before the one in lower case. An empty one is an absent one.
    fn read(variable: impl Fn(&str) -> Option<String>) -> Proxies {
        let first = |names: [&'static str; 2]| {
            let set = |name| Some((name, variable(name).filter(|value| !value.is_empty())?));
            names.into_iter().find_map(set)
        };
        let setting = |names| first(names).map(|(variable, url)| Setting { variable, url });
        let exceptions = first(["NO_PROXY", "no_proxy"]).map(|(_, entries)| entries).unwrap_or_default();
        Proxies {
            http: setting(["HTTP_PROXY", "http_proxy"]),
            https: setting(["HTTPS_PROXY", "https_proxy"]),
            exceptions: exceptions.split(',').filter_map(Exception::parse).collect(),
        }
    }

    /// Proxy of requests to a URL. Fails if the variable has no URL of a proxy that netctl can use.
    pub(super) fn of(&self, url: &str) -> Result<Option<Proxy>, Error> {
        // Requests to an invalid URL fail anyway.
        let Ok(uri) = url.parse::<Uri>() else { return Ok(None) };
        let (setting, default_port) = match uri.scheme_str() {
            Some("https") => (&self.https, 443),
            Some("http") => (&self.http, 80),
            _ => return Ok(None),
        };
        match (setting, uri.host()) {
            (Some(setting), Some(host)) if !self.excepts(host, uri.port_u16().unwrap_or(default_port)) => {
                setting.proxy().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Whether a host is reached without a proxy, as this machine always is.
    fn excepts(&self, host: &str, port: u16) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let is_local = address.map_or(host == "localhost", |address| address.is_loopback());
        is_local || self.exceptions.iter().any(|exception| exception.matches(&host, address, port))
    }
}

impl Setting {
    fn proxy(&self) -> Result<Proxy, Error> {
        let url = if self.url.contains("://") { self.url.clone() } else { format!("http://{}", self.url) };
        match Proxy::new(&url) {
            Ok(proxy) if matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) => Ok(proxy),
            _ => Err(Error::Usage(format!(
                "{}: expected the URL of a proxy, http://HOST:PORT or https://HOST:PORT; NO_PROXY lists hosts without one",
                self.variable
            ))),
        }
    }
}

impl Exception {
    /// None of an entry that matches no host.
    fn parse(entry: &str) -> Option<Exception> {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return Some(Exception::All);
        }
        if let Ok(subnet) = entry.parse::<IpNet>() {
            return Some(Exception::Subnet(subnet));
        }
        let (host, port) = split_port(&entry);
        let port = port.filter(|port| !port.is_empty()).map(str::parse::<u16>).transpose().ok()?;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Exception::Address(address.to_canonical(), port));
        }
        let (suffix, with_itself) = match host.strip_prefix('*').filter(|rest| rest.starts_with('.')) {
            Some(rest) => (rest.to_owned(), false),
            None if host.starts_with('.') => (host.to_owned(), false),
            None => (format!(".{host}"), true),
        };
        (!host.is_empty()).then_some(Exception::Domain { suffix, with_itself, port })
    }

    /// Whether a host, whose name is in lower case, belongs to the entry.
    fn matches(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        let is_port = |of: &Option<u16>| of.is_none_or(|of| of == port);
        match self {
            Exception::All => true,
            Exception::Subnet(subnet) => address.is_some_and(|address| subnet.contains(&address)),
            Exception::Address(of, ports) => address == Some(*of) && is_port(ports),
            Exception::Domain { suffix, with_itself, port } => {
                let is_itself = *with_itself && suffix.strip_prefix('.') == Some(host);
                address.is_none() && is_port(port) && (is_itself || host.ends_with(suffix.as_str()))
            }
        }
    }
}

/// Host and port of `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`. A text with more colons is an IPv6 address.
fn split_port(text: &str) -> (&str, Option<&str>) {
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return (address, rest.strip_prefix(':'));
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        let value = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, it)| (*it).to_owned());
        Proxies::read(value)
    }

    /// Host and port of the proxy for a URL.
    fn chosen(proxies: &Proxies, url: &str) -> Option<String> {
        proxies.of(url).unwrap().map(|proxy| format!("{}:{}", proxy.host(), proxy.port()))
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let (http, https) = (("HTTP_PROXY", "http://h:1"), ("HTTPS_PROXY", "s:2"));
        for (variables, for_http, for_https) in [
            (&[http, https][..], Some("h:1"), Some("s:2")),
            (&[http], Some("h:1"), None),
            (&[https], None, Some("s:2")),
            (&[("http_proxy", "http://l:3"), ("https_proxy", "https://u:p@l:4/")], Some("l:3"), Some("l:4")),
            (&[("http_proxy", "http://l:3"), http], Some("h:1"), None),
            (&[("http_proxy", "http://l:3"), ("HTTP_PROXY", "")], Some("l:3"), None),
            (&[("ALL_PROXY", "http://a:5"), ("all_proxy", "http://a:5")], None, None),
            (&[http, https, ("NO_PROXY", "*")], None, None),
        ] {
            let proxies = proxies(variables);
            assert_eq!(chosen(&proxies, "http://m:9999/x").as_deref(), for_http, "{variables:?}");
            assert_eq!(chosen(&proxies, "https://m:9999/x").as_deref(), for_https, "{variables:?}");
        }
    }

    #[test]
    fn this_machine_and_exceptions_have_no_proxy() {
        let entries = "m1, .Below.test,*.star.test,web.test:8080,10.1.2.3,10.2.0.0/16,2001:db8::/32,\
                       [fd00::1]:9999,10.3.0.1:80,10.4.0.0/x,:80,,a:b";
        let proxies = proxies(&[("HTTP_PROXY", "http://p:1"), ("no_proxy", entries)]);
        for (host, is_proxied) in [
            ("localhost", false),
            ("LOCALHOST:9999", false),
            ("127.0.0.1:9999", false),
            ("127.9.9.9", false),
            ("[::1]:9999", false),
            ("[::ffff:127.0.0.1]", false),
            ("m1:9999", false),
            ("M1", false),
            ("x.m1", false),
            ("xm1", true),
            ("m2", true),
            ("a.below.test", false),
            ("below.test", true),
            ("a.star.test", false),
            ("star.test", true),
            ("web.test:8080", false),
            ("a.web.test:8080", false),
            ("web.test", true),
            ("10.1.2.3:9999", false),
            ("10.1.2.4:9999", true),
            ("10.2.3.4", false),
            ("10.4.0.1", true),
            ("[2001:db8::7]:9999", false),
            ("[2001:db9::7]:9999", true),
            ("[fd00::1]:9999", false),
            ("[fd00::1]:9998", true),
            ("10.3.0.1", false),
            ("10.3.0.1:9999", true),
            ("a:1", true),
        ] {
            let proxy = chosen(&proxies, &format!("http://{host}/api"));
            assert_eq!(proxy.is_some(), is_proxied, "{host}");
        }
    }

    #[test]
    fn other_proxies_are_refused_where_they_would_be_used() {
        for url in ["socks5://secret@p:1", "ftp://secret@p", "http://"] {
            let proxies = proxies(&[("HTTPS_PROXY", url)]);
            let error = proxies.of("https://m:9999").unwrap_err().to_string();
            assert!(error.starts_with("HTTPS_PROXY: expected ") && !error.contains("secret"), "{error}");
            assert_eq!(chosen(&proxies, "http://m:9999"), None);
            assert_eq!(chosen(&proxies, "https://127.0.0.1:9999"), None);
        }
    }
}
