//! Flags and configuration of the etcd client.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;

use contiv_store::{Auth, Config, Identity, Tls};

use crate::secret;
use crate::tls::KeyPair;

/// TLS files and credentials in a daemon's flags.
#[derive(Clone, Debug, Default)]
pub struct EtcdAccess {
    pub ca: Option<PathBuf>,
    pub own: Option<KeyPair>,
    /// Expected name in the servers' certificates, if it is not the endpoint's host.
    pub server_name: Option<String>,
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
}

/// The flags do not make a valid configuration of the etcd client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--etcd")]
    Endpoints(#[source] contiv_store::Error),
    #[error("--etcd-password-file")]
    Password(#[source] secret::Error),
}

impl EtcdAccess {
    /// The configuration with the endpoints in `list`.
    pub fn config(&self, list: &str) -> Result<Config, Error> {
        let mut config = Config::parse(list).map_err(Error::Endpoints)?;
        shuffle(&mut config.endpoints);
        if self.ca.is_some() || self.own.is_some() {
            let identity =
                |own: &KeyPair| Identity { certificate: own.certificate.clone(), key: own.key.clone() };
            config.tls = Some(Tls {
                ca: self.ca.clone(),
                identity: self.own.as_ref().map(identity),
                server_name: self.server_name.clone(),
            });
        }
        if let (Some(user), Some(file)) = (&self.user, &self.password_file) {
            let password = secret::read_line(file).map_err(Error::Password)?;
            config.auth = Some(Auth { user: user.clone(), password });
        }
        Ok(config)
    }
}

/// Puts the endpoints in a random order: a process uses the first that answers, and all processes
/// together use all of them.
fn shuffle(endpoints: &mut [String]) {
    // A fresh `RandomState` has a random seed.
    let random = RandomState::new();
    endpoints.sort_by_cached_key(|endpoint| random.hash_one(endpoint));
}

/// Defines the flags of [`EtcdAccess`], with environment variables that begin with `$prefix`.
#[macro_export]
macro_rules! etcd_flags {
    ($prefix:literal) => {
        #[derive(Clone, Debug, clap::Args)]
        pub struct EtcdFlags {
            /// CA bundle (PEM) used to verify etcd's certificates; enables https
            #[arg(long, env = concat!($prefix, "ETCD_CA"), value_name = "FILE")]
            pub etcd_ca: Option<std::path::PathBuf>,

            /// Client certificate for etcd, PEM
            #[arg(long, env = concat!($prefix, "ETCD_CERT"), value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
            pub etcd_cert: Option<std::path::PathBuf>,

            /// Private key of --etcd-cert, PEM
            #[arg(long, env = concat!($prefix, "ETCD_KEY"), value_name = "FILE", requires = "etcd_cert")]
            pub etcd_key: Option<std::path::PathBuf>,

            /// Expected name in etcd's certificates [default: each endpoint's host]
            #[arg(long, env = concat!($prefix, "ETCD_SERVER_NAME"), value_name = "NAME", requires = "etcd_ca")]
            pub etcd_server_name: Option<String>,

            /// etcd user name
            #[arg(long, env = concat!($prefix, "ETCD_USER"), value_name = "NAME", requires = "etcd_password_file")]
            pub etcd_user: Option<String>,

            /// File whose first line is the etcd user's password; mode 0600
            #[arg(long, env = concat!($prefix, "ETCD_PASSWORD_FILE"), value_name = "FILE", requires = "etcd_user")]
            pub etcd_password_file: Option<std::path::PathBuf>,
        }

        impl EtcdFlags {
            pub fn access(&self) -> $crate::etcd::EtcdAccess {
                let pair = |(certificate, key)| $crate::tls::KeyPair { certificate, key };
                $crate::etcd::EtcdAccess {
                    ca: self.etcd_ca.clone(),
                    own: self.etcd_cert.clone().zip(self.etcd_key.clone()).map(pair),
                    server_name: self.etcd_server_name.clone(),
                    user: self.etcd_user.clone(),
                    password_file: self.etcd_password_file.clone(),
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn processes_start_at_different_members() {
        let list = "http://a:1,http://b:1,http://c:1";
        let firsts = |_| EtcdAccess::default().config(list).unwrap().endpoints.remove(0);
        assert_eq!((0..200).map(firsts).collect::<BTreeSet<_>>().len(), 3);
    }
}
