//! Features and configuration of a switch.

use super::{Connection, Error};
use crate::message::Body;
use crate::switch::{AsyncConfig, Features, SwitchConfig};

impl Connection {
    /// Returns the features of the switch.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`], and [`Error::Unexpected`] for a reply of another type.
    pub async fn features(&self) -> Result<Features, Error> {
        match self.request(Body::FeaturesRequest, "read features").await? {
            Body::FeaturesReply(features) => Ok(features),
            _ => Err(self.unexpected("read features")),
        }
    }

    /// Returns the configuration of the switch.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`], and [`Error::Unexpected`] for a reply of another type.
    pub async fn config(&self) -> Result<SwitchConfig, Error> {
        match self.request(Body::GetConfigRequest, "read configuration").await? {
            Body::GetConfigReply(config) => Ok(config),
            _ => Err(self.unexpected("read configuration")),
        }
    }

    /// Changes the configuration of the switch.
    ///
    /// # Errors
    ///
    /// As [`Connection::send_all`].
    pub async fn set_config(&self, config: SwitchConfig) -> Result<(), Error> {
        self.send_all(vec![Body::SetConfig(config)], |_| "set configuration".into()).await
    }

    /// Selects the asynchronous messages that the switch sends on this connection.
    ///
    /// # Errors
    ///
    /// As [`Connection::send_all`].
    pub async fn set_async(&self, config: AsyncConfig) -> Result<(), Error> {
        self.send_all(vec![Body::SetAsync(config)], |_| "set asynchronous configuration".into()).await
    }
}
