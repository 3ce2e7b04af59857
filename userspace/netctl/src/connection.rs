//! Where netmaster is and how it is reached: flags, environment, context, default.

use std::path::PathBuf;

use crate::{
    context::{Context, Contexts},
    error::Error,
    flags::Server,
};

/// URL without flags, environment and context.
const DEFAULT: &str = "http://netmaster:9999";

/// A valid connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// URLs of the netmasters without a slash at the end; at least one.
    pub netmasters: Vec<String>,
    /// CA bundle (PEM); the system's certificates if there is none.
    pub cacert: Option<PathBuf>,
    /// Client certificate and its private key (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
    /// File with the token.
    pub token_file: Option<PathBuf>,
    /// Whether any certificate is accepted.
    pub insecure: bool,
    /// Whether a context is used.
    pub has_context: bool,
}

impl Connection {
    /// Completes flags and environment by the context.
    ///
    /// The current context is not used if flags or environment name a netmaster: its credentials are for its own cluster.
    /// A context that is named (`--context`) is used for everything that they leave out, its credentials only for its own
    /// netmasters.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for invalid URLs, unknown contexts and incomplete credentials; [`Error::File`] if the contexts cannot
    /// be read.
    pub fn resolve(server: &Server) -> Result<Connection, Error> {
        let own = Context::from(server);
        let named = server.context.as_ref().filter(|name| !name.is_empty());
        let context = match (named, own.netmaster.is_empty()) {
            (Some(name), _) => Some(Contexts::read()?.find(name)?.clone()),
            (None, false) => None,
            (None, true) => {
                let all = Contexts::read()?;
                all.current.as_ref().map(|name| all.find(name)).transpose()?.cloned()
            }
        };
        Connection::completed(own, context, server.verify)
    }

    fn completed(own: Context, context: Option<Context>, verify: bool) -> Result<Connection, Error> {
        let has_context = context.is_some();
        let mut context = context.unwrap_or_default();
        // Another server could use the token, and learn from the certificate who the user is.
        if !own.netmaster.iter().all(|url| context.has(url)) {
            (context.cert, context.key, context.token_file) = (None, None, None);
        }
        // Certificate and key belong together.
        let has_identity = own.cert.is_some() || own.key.is_some();
        let identity = identity(if has_identity { &own } else { &context })?;
        let netmasters = [own.netmaster, context.netmaster, vec![DEFAULT.into()]];
        Connection {
            netmasters: netmasters.into_iter().find(|urls| !urls.is_empty()).unwrap_or_default(),
            cacert: own.cacert.or(context.cacert),
            identity,
            token_file: own.token_file.or(context.token_file),
            insecure: !verify && (own.insecure || context.insecure),
            has_context,
        }
        .checked()
    }

    /// Whether nothing tells the cluster from others but the URLs: neither a context nor a client certificate is used.
    pub fn has_only_urls(&self) -> bool {
        !self.has_context && self.identity.is_none()
    }

    /// Whether all connections are encrypted.
    pub fn is_secure(&self) -> bool {
        self.netmasters.iter().all(|url| is_https(url))
    }

    fn checked(mut self) -> Result<Connection, Error> {
        for url in &mut self.netmasters {
            if !is_https(url) && !url.starts_with("http://") {
                return Err(Error::Usage(format!(
                    "--netmaster {url:?}: expected http://HOST:PORT or https://HOST:PORT"
                )));
            }
            url.truncate(url.trim_end_matches('/').len());
        }
        // A token is a secret: it is never sent over plain HTTP.
        match (&self.token_file, self.netmasters.iter().find(|url| !is_https(url))) {
            (Some(_), Some(url)) => {
                Err(Error::Usage(format!("--token-file requires an https URL, and --netmaster is {url}")))
            }
            _ => Ok(self),
        }
    }
}

/// Whether a token may be sent to the URL.
pub fn is_https(url: &str) -> bool {
    url.starts_with("https://")
}

/// Client certificate and private key of a context.
fn identity(context: &Context) -> Result<Option<(PathBuf, PathBuf)>, Error> {
    match (&context.cert, &context.key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some((cert.clone(), key.clone()))),
        (Some(_), None) => {
            Err(Error::Usage("--cert requires --key, the private key of the certificate".into()))
        }
        (None, Some(_)) => Err(Error::Usage("--key requires --cert, the certificate of the key".into())),
    }
}

/// The connection of a context alone; its errors are those of the context.
impl TryFrom<&Context> for Connection {
    type Error = Error;

    fn try_from(context: &Context) -> Result<Connection, Error> {
        Connection {
            netmasters: context.netmaster.clone(),
            cacert: context.cacert.clone(),
            identity: identity(context)?,
            token_file: context.token_file.clone(),
            insecure: context.insecure,
            has_context: true,
        }
        .checked()
    }
}

impl From<&Server> for Context {
    fn from(server: &Server) -> Context {
        // An empty environment variable is an absent one.
        let urls = server.netmaster.iter().map(|url| url.trim()).filter(|url| !url.is_empty());
        let path = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        Context {
            netmaster: urls.map(str::to_owned).collect(),
            cacert: path(&server.cacert),
            cert: path(&server.cert),
            key: path(&server.key),
            token_file: path(&server.token_file),
            insecure: server.insecure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_context_are_for_its_netmasters() {
        let context = Context {
            netmaster: vec!["https://a:9999/".into(), "https://b:9999".into()],
            cacert: Some("ca".into()),
            cert: Some("cert".into()),
            key: Some("key".into()),
            token_file: Some("token".into()),
            insecure: false,
        };
        for (urls, is_own) in [
            (&["https://a:9999"][..], true),
            (&[], true),
            (&["https://b:9999/", "https://a:9999"], true),
            (&["https://a:9998"], false),
            (&["http://a:9999"], false),
            (&["https://a:9999/x"], false),
            (&["https://a:9999", "https://c:9999"], false),
        ] {
            let netmaster = urls.iter().map(|&url: &&str| url.to_owned()).collect();
            let own = Context { netmaster, ..Context::default() };
            let connection = Connection::completed(own, Some(context.clone()), false).unwrap();
            let used = (connection.identity.is_some(), connection.token_file.is_some());
            assert_eq!(used, (is_own, is_own), "{urls:?}");
            assert_eq!(connection.cacert, Some("ca".into()), "{urls:?}");
        }
        // Flags and environment are for every URL.
        let own = Context {
            netmaster: vec!["https://c".into()],
            token_file: Some("own".into()),
            ..Context::default()
        };
        let connection = Connection::completed(own, Some(context), false).unwrap();
        assert_eq!((connection.identity, connection.token_file), (None, Some("own".into())));
    }
}
