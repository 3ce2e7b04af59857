//! Generates kube-proxy's rules for services, as far as packets from a pod to a service traverse them. Node ports and the
//! filter table are omitted, in favour of the rules.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddrV4},
};

/// A TCP service.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) address: SocketAddrV4,
    pub(super) endpoints: Vec<SocketAddrV4>,
}

/// Mark of packets to masquerade.
const MARK: &str = "0x4000";

/// Ruleset for `nft -f`: one map lookup of address, protocol and port selects the chain of the service.
pub(super) fn nftables(services: &[Service]) -> String {
    let mut text = "table ip kube-proxy {\n\
         map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }\n\
         chain mark-for-masquerade { meta mark set mark or 0x4000; }\n"
        .to_owned();
    for (number, service) in services.iter().enumerate() {
        for (at, endpoint) in service.endpoints.iter().enumerate() {
            line(&mut text, format_args!("chain endpoint-{number}-{at} {{"));
            line(&mut text, format_args!("ip saddr {} jump mark-for-masquerade", endpoint.ip()));
            line(&mut text, format_args!("meta l4proto tcp dnat to {endpoint}\n}}"));
        }
        let (ip, port, count) = (service.address.ip(), service.address.port(), service.endpoints.len());
        let choices: Vec<_> = (0..count).map(|at| format!("{at} : goto endpoint-{number}-{at}")).collect();
        line(&mut text, format_args!("chain service-{number} {{"));
        line(
            &mut text,
            format_args!("ip daddr {ip} tcp dport {port} ip saddr != {PODS} jump mark-for-masquerade"),
        );
        line(&mut text, format_args!("numgen random mod {count} vmap {{ {} }}\n}}", choices.join(", ")));
    }
    text += "chain services { ip daddr . meta l4proto . th dport vmap @service-ips\n}\n\
         chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services\n}\n\
         chain nat-postrouting { type nat hook postrouting priority srcnat; policy accept;\n\
         meta mark & 0x4000 == 0x4000 masquerade fully-random\n}\n}\n";
    let elements = services.iter().enumerate().map(|(number, service)| {
        format!("{} . tcp . {} : goto service-{number}", service.address.ip(), service.address.port())
    });
    line(
        &mut text,
        format_args!(
            "add element ip kube-proxy service-ips {{ {} }}",
            elements.collect::<Vec<_>>().join(",\n")
        ),
    );
    text
}

/// Sources that are not masqueraded.
const PODS: &str = "10.100.0.0/16";

/// Ruleset for `iptables-restore`: a packet traverses the services in sequence.
pub(super) fn iptables(services: &[Service]) -> String {
    let mut chains =
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n".to_owned();
    let mut rules = format!(
        "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n\
         -A KUBE-MARK-MASQ -j MARK --or-mark {MARK}\n\
         -A KUBE-POSTROUTING -m mark ! --mark {MARK}/{MARK} -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --xor-mark {MARK}\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n"
    );
    for (number, service) in services.iter().enumerate() {
        let (ip, port) = (service.address.ip(), service.address.port());
        let (chain, comment) =
            (format!("KUBE-SVC-{number:08}"), format!("-m comment --comment \"ns/svc{number}\""));
        line(&mut chains, format_args!(":{chain} - [0:0]"));
        line(
            &mut rules,
            format_args!("-A KUBE-SERVICES -d {ip}/32 -p tcp {comment} -m tcp --dport {port} -j {chain}"),
        );
        line(
            &mut rules,
            format_args!(
                "-A {chain} ! -s {PODS} -d {ip}/32 -p tcp {comment} -m tcp --dport {port} -j KUBE-MARK-MASQ"
            ),
        );
        for (at, endpoint) in service.endpoints.iter().enumerate() {
            let target = format!("KUBE-SEP-{number:08}{at}");
            let left = service.endpoints.len() - at;
            let chance = match left {
                1 => String::new(),
                _ => format!("-m statistic --mode random --probability {:.11} ", 1.0 / left as f64),
            };
            line(&mut chains, format_args!(":{target} - [0:0]"));
            line(&mut rules, format_args!("-A {chain} {comment} {chance}-j {target}"));
            line(&mut rules, format_args!("-A {target} -s {}/32 {comment} -j KUBE-MARK-MASQ", endpoint.ip()));
            line(
                &mut rules,
                format_args!("-A {target} -p tcp {comment} -m tcp -j DNAT --to-destination {endpoint}"),
            );
        }
    }
    chains + &rules + "COMMIT\n"
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{words}");
}

/// Generates services with endpoints; only the endpoints in `real` exist.
pub(super) fn services(count: usize, endpoints: usize, real: &[(usize, Vec<SocketAddrV4>)]) -> Vec<Service> {
    let made = |number: usize| {
        let at =
            |first: Ipv4Addr, port| SocketAddrV4::new(Ipv4Addr::from(u32::from(first) + number as u32), port);
        let there = real.iter().find(|(there, _)| *there == number).map(|(_, endpoints)| endpoints.clone());
        let nowhere =
            || (0..endpoints).map(|pod| at(Ipv4Addr::new(10, 200 + pod as u8, 0, 1), 8080)).collect();
        Service { address: at(FIRST, PORT), endpoints: there.unwrap_or_else(nowhere) }
    };
    (0..count).map(made).collect()
}

/// Address of the first service; addresses are consecutive.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const PORT: u16 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_ordered_and_endpoints_have_equal_probability() {
        let real: SocketAddrV4 = "10.100.2.2:80".parse().unwrap();
        let services = services(3, 2, &[(1, vec![real, real])]);
        assert_eq!(services[2].address.to_string(), "10.96.0.3:80");
        let text = iptables(&services);
        let entry: Vec<_> = text.lines().filter(|line| line.starts_with("-A KUBE-SERVICES")).collect();
        assert_eq!(
            entry[1],
            "-A KUBE-SERVICES -d 10.96.0.2/32 -p tcp -m comment --comment \"ns/svc1\" -m tcp --dport 80 -j KUBE-SVC-00000001"
        );
        assert_eq!(text.matches("--probability 0.50000000000 ").count(), 3);
        assert_eq!(text.matches("--to-destination 10.100.2.2:80\n").count(), 2);
        let text = nftables(&services);
        assert!(
            text.contains("numgen random mod 2 vmap { 0 : goto endpoint-1-0, 1 : goto endpoint-1-1 }"),
            "{text}"
        );
        assert!(text.contains("10.96.0.2 . tcp . 80 : goto service-1,\n"), "{text}");
    }
}
