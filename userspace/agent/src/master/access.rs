use std::path::PathBuf;

use bytes::Bytes;
use contiv_daemon::{
    client::{Connector, Transport},
    reload::Reloadable,
    secret,
    tls::{self, KeyPair},
};
use http_body_util::Full;
use hyper::header::HeaderValue;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

use crate::config::MasterFlags;

/// Access to netmaster: transport, TLS and credentials, reloaded when their files change.
#[derive(Clone)]
pub struct Access(Reloadable<Credentials>);

pub(super) struct Credentials {
    pub(super) transport: Transport,
    pub(super) client: Client<Connector, Full<Bytes>>,
    /// Value of the `Authorization` header: `Bearer` and a token, marked as sensitive.
    pub(super) token: Option<HeaderValue>,
}

/// A file that a flag names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Certificate or key.
    #[error("set up https to netmaster (--master-ca, --master-cert)")]
    Tls(#[from] tls::Error),
    /// Token file.
    #[error("--master-token-file")]
    Token(#[from] secret::Error),
    /// Token with invalid characters.
    #[error("--master-token-file {}: the token is not printable ASCII", .0.display())]
    InvalidToken(PathBuf),
}

impl Access {
    /// Plain HTTP without credentials.
    pub fn plain() -> Result<Access, AccessError> {
        let (access, _reload) = Access::read(MasterFlags::default())?;
        Ok(access)
    }

    /// Reads the files that the flags name. The returned future reloads them when they change and must be spawned.
    pub fn read(
        flags: MasterFlags,
    ) -> Result<(Access, impl Future<Output = ()> + Send + 'static), AccessError> {
        let files = [&flags.master_ca, &flags.master_cert, &flags.master_key, &flags.master_token_file];
        let files = files.into_iter().flatten().cloned().collect();
        let (credentials, reload) =
            Reloadable::load("netmaster credentials", files, move || Credentials::read(&flags))?;
        Ok((Access(credentials), reload))
    }
}

impl Access {
    /// The most recently loaded credentials.
    pub(super) fn current(&self) -> std::sync::Arc<Credentials> {
        self.0.now()
    }
}

impl Credentials {
    fn read(flags: &MasterFlags) -> Result<Credentials, AccessError> {
        let own = flags.master_cert.clone().zip(flags.master_key.clone());
        let own = own.map(|(certificate, key)| KeyPair { certificate, key });
        let tls = flags.master_ca.as_deref().map(|ca| tls::client(ca, own.as_ref())).transpose()?;
        let token = match &flags.master_token_file {
            None => None,
            Some(path) => {
                let token = HeaderValue::try_from(format!("Bearer {}", secret::read_line(path)?));
                let mut token = token.map_err(|_| AccessError::InvalidToken(path.clone()))?;
                token.set_sensitive(true);
                Some(token)
            }
        };
        let transport = Transport::new(tls)?;
        let client = Client::builder(TokioExecutor::new()).build(transport.connector());
        Ok(Credentials { transport, client, token })
    }
}
