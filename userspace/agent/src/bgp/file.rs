use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
};

use contiv_model::name::EndpointId;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::announced::Announced;
use crate::{atomic_file, state::BgpSpeaker};

/// File with the settings of the speaker and what it announces, for an agent that starts without its store. Like the forwarding
/// state, it outlives the agent and not a reboot.
#[derive(Clone, Debug)]
pub struct SpeakerFile(PathBuf);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    router: Ipv4Net,
    local_as: u32,
    neighbor: Ipv4Addr,
    neighbor_as: u32,
    routes_vlans: bool,
    endpoints: BTreeMap<EndpointId, BTreeSet<IpAddr>>,
}

impl SpeakerFile {
    /// The file beside the CNI socket, which each agent of a machine has for itself.
    pub fn beside(socket: &Path) -> SpeakerFile {
        SpeakerFile(socket.with_extension("bgp.json"))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the file exists and cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// What was announced last; `None` if no speaker was running. A file that cannot be read is reported: the speaker waits for the
    /// state then.
    pub(super) fn read(&self) -> Option<Announced> {
        let content = match fs::read(&self.0) {
            Ok(text) => serde_json::from_slice::<Content>(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
        };
        match content {
            Ok(content) => Some(content.into()),
            Err(error) => {
                tracing::warn!("read {}: {error}", self.0.display());
                None
            }
        }
    }

    /// Replaces the file, or removes it if there are no settings. A failure is logged: then an agent that starts without its store
    /// announces what the file had.
    pub(super) fn save(&self, announced: &Announced) {
        let saved = match Content::of(announced) {
            Some(content) => self.write(&content),
            None => self.remove(),
        };
        if let Err(error) = saved {
            tracing::warn!("write {}: {error}", self.0.display());
        }
    }

    /// Replaces the file atomically.
    fn write(&self, content: &Content) -> io::Result<()> {
        atomic_file::replace(&self.0, &serde_json::to_vec(content)?)
    }
}

impl Content {
    fn of(announced: &Announced) -> Option<Content> {
        let BgpSpeaker { router, asn, neighbor, neighbor_as } = announced.speaker.clone()?;
        Some(Content {
            router,
            local_as: asn,
            neighbor,
            neighbor_as,
            routes_vlans: announced.routes_vlans,
            endpoints: BTreeMap::clone(&announced.endpoints),
        })
    }
}

impl From<Content> for Announced {
    fn from(content: Content) -> Announced {
        let Content { router, local_as, neighbor, neighbor_as, routes_vlans, endpoints } = content;
        Announced {
            speaker: Some(BgpSpeaker { router, asn: local_as, neighbor, neighbor_as }),
            // In other forward modes there is no speaker.
            is_routing: true,
            routes_vlans,
            endpoints: Arc::new(endpoints),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced() -> Announced {
        let addresses = ["10.1.1.5", "2001:db8::5"].map(|text| text.parse::<IpAddr>().unwrap());
        let endpoints = BTreeMap::from([(EndpointId::from("n.t-c1"), BTreeSet::from(addresses))]);
        Announced {
            speaker: Some(BgpSpeaker {
                router: "50.1.1.1/24".parse().unwrap(),
                asn: 65000,
                neighbor: [50, 1, 1, 2].into(),
                neighbor_as: 65001,
            }),
            is_routing: true,
            routes_vlans: true,
            endpoints: Arc::new(endpoints),
        }
    }

    #[test]
    fn the_file_has_what_is_announced() {
        let folder = tempfile::tempdir().unwrap();
        let file = SpeakerFile::beside(&folder.path().join("cni.sock"));
        assert_eq!(file.read(), None);
        file.save(&announced());
        assert_eq!(file.read(), Some(announced()));
        for _ in 0..2 {
            file.save(&Announced::default());
            assert!(file.read().is_none() && !file.path().exists());
        }
    }

    #[test]
    fn files_of_other_releases_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = SpeakerFile::beside(&folder.path().join("cni.sock"));
        let text = r#"{"router":"50.1.1.1/24","localAs":65000,"neighbor":"50.1.1.2","neighborAs":65001,"routesVlans":true,
                       "endpoints":{"n.t-c1":["10.1.1.5","2001:db8::5"]},"later":1}"#;
        fs::write(folder.path().join("cni.bgp.json"), text).unwrap();
        assert_eq!(file.read(), Some(announced()));
        fs::write(file.path(), "{").unwrap();
        assert_eq!(file.read(), None);
    }
}
