use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::{Duration, Instant},
};

use contiv_model::{event::Event, key::Key};
use contiv_store::{Error, Position, Status, Store};
use tokio::{sync::watch, time::sleep};

use super::{
    acceptance::Acceptance,
    memory::{Memory, MemoryFile},
    regression::{Regression, random_id},
    renamed::Renamed,
    witness::{Deletion, Witness, unlisted_networks, witnesses},
};
use crate::{
    error::one_line,
    plan::Node,
    source::{Batch, BatchKind, NETWORKS, Put, Sources, identity_in},
    state::{Reader, Source, Update, Writer},
};

/// Time limit for the witnesses of a deletion to appear: a large change takes several transactions, and another netmaster
/// may have to complete it.
const WITNESS_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between reads of the store.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between writes of the file.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of witnesses that are checked for one batch.
const MAX_WITNESSES: usize = 8;

/// Applies the store's changes as long as its data continues the agent's memory.
pub struct Guard {
    store: Store,
    node: Node,
    reader: Reader,
    file: MemoryFile,
    memory: Memory,
    saved: Option<Instant>,
    /// The memory was written by an earlier process and has not been compared with the store yet.
    recalled: bool,
    /// Newest revision of each source.
    seen: BTreeMap<Source, i64>,
    status: watch::Sender<Option<Regression>>,
    connections: watch::Sender<Vec<watch::Receiver<Status>>>,
}

/// Status of a [`Guard`] for other tasks.
#[derive(Clone, Debug)]
pub struct Continuity {
    /// Present while the store is regressed.
    pub regression: watch::Receiver<Option<Regression>>,
    /// Status of each watch of the store.
    pub connections: watch::Receiver<Vec<watch::Receiver<Status>>>,
}

impl Guard {
    /// Reads the memory of an earlier process.
    ///
    /// # Errors
    ///
    /// Fails if the file exists and cannot be read.
    pub fn open(
        store: Store,
        node: Node,
        reader: Reader,
        file: MemoryFile,
    ) -> io::Result<(Guard, Continuity)> {
        let mut memory = file.read()?;
        let lacks_id = memory.regressed.is_some() && memory.regression_id.is_empty();
        if lacks_id {
            memory.regression_id = random_id();
        }
        let (status, seen) = watch::channel(regression(&memory, &node));
        let (connections, connected) = watch::channel(vec![]);
        let continuity = Continuity { regression: seen, connections: connected };
        let recalled = memory != Memory::default();
        let (saved, seen) = (None, BTreeMap::new());
        let mut guard =
            Guard { store, node, reader, file, memory, saved, recalled, seen, status, connections };
        if lacks_id {
            guard.save();
        }
        Ok((guard, continuity))
    }

    /// Fails if an earlier process used another name for the node, and interfaces of its endpoints exist.
    ///
    /// # Errors
    ///
    /// The node has been renamed.
    pub fn check_name(&self) -> Result<(), Renamed> {
        let has_interfaces = || self.reader.with(|state| state.attachments().next().is_some());
        match &self.memory.host {
            Some(before) if *before != self.node.host && has_interfaces() => {
                Err(Renamed::new(before, &self.node.host))
            }
            _ => Ok(()),
        }
    }

    /// Applies changes until the watches end, which happens only if the store client is dropped. The future may be
    /// dropped at any time.
    ///
    /// # Errors
    ///
    /// The node has been renamed. The state is then incomplete.
    pub async fn follow(&mut self, writer: &mut Writer) -> Result<(), Renamed> {
        self.check_name()?;
        loop {
            if self.status.borrow().is_none() {
                let mut sources = Sources::new(&self.store, self.node.host.clone(), self.reader.clone());
                self.connections.send_replace(sources.statuses());
                let acceptance = Acceptance::new(&self.store, &self.node.host);
                let contradiction = acceptance.clear_while(self.apply(&mut sources, writer)).await?;
                let Some(why) = contradiction else { return Ok(()) };
                self.freeze(why);
            }
            while !self.try_release(writer).await {
                sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// Writes the file.
    pub fn save(&mut self) {
        self.saved = Some(Instant::now());
        if let Err(error) = self.file.write(&self.memory) {
            tracing::warn!("write {}: {error}", self.file.path().display());
        }
    }

    /// Applies batches until one contradicts the memory; returns the contradiction.
    async fn apply(&mut self, sources: &mut Sources, writer: &mut Writer) -> Result<Option<String>, Renamed> {
        let mut changes_of_statuses = 0;
        while let Some(batch) = sources.next().await {
            let changes = sources.changes_of_statuses();
            if std::mem::replace(&mut changes_of_statuses, changes) != changes {
                self.connections.send_replace(sources.statuses());
            }
            if batch.kind == BatchKind::Forgotten {
                self.seen.remove(&batch.source);
                batch.apply(writer);
                continue;
            }
            if let Some(why) = self.contradiction(&batch).await {
                return Ok(Some(why));
            }
            self.settle_name(&batch)?;
            let (_, revision) = batch.position();
            self.memory.learn(batch.position(), batch.newest.as_ref());
            if let Some(Some(identity)) = &batch.identity {
                self.memory.identity = Some(identity.clone());
            }
            let seen = self.seen.entry(batch.source.clone()).or_default();
            *seen = revision.max(*seen);
            batch.apply(writer);
            let complete = self.reader.awaited().is_empty();
            if complete && self.saved.is_none_or(|saved| saved.elapsed() >= SAVE_INTERVAL) {
                self.save();
            }
        }
        Ok(None)
    }

    /// Compares the node's name with the endpoints of its interfaces when the batch completes the state, because the
    /// first full resync follows. Skipped if the earlier process had the same name.
    fn settle_name(&mut self, batch: &Batch) -> Result<(), Renamed> {
        if self.memory.host.as_ref() == Some(&self.node.host) {
            return Ok(());
        }
        let awaited = self.reader.awaited();
        let is_last = !awaited.is_empty() && awaited.iter().all(|source| *source == batch.source);
        if !is_last || (batch.kind != BatchKind::Complete && batch.relisted.is_none()) {
            return Ok(());
        }
        if let Some(renamed) = self.reader.with(|state| Renamed::find(state, &self.node, &batch.updates)) {
            return Err(renamed);
        }
        self.memory.host = Some(self.node.host.clone());
        Ok(())
    }

    fn freeze(&mut self, why: String) {
        self.memory.regressed = Some(why);
        self.memory.regression_id = random_id();
        let regression = regression(&self.memory, &self.node);
        if let Some(regression) = &regression {
            tracing::error!("{regression}");
        }
        self.save();
        self.status.send_replace(regression);
    }

    /// Returns the reason why the store, as the batch shows it, does not continue the agent's memory.
    async fn contradiction(&mut self, batch: &Batch) -> Option<String> {
        let why = self.other_history(batch).await;
        if why.is_some() {
            return why;
        }
        if let Some(why) = batch.identity.as_ref().and_then(|id| self.memory.other_identity(id.as_deref())) {
            return Some(why);
        }
        if self.recalled && batch.source.prefix() == NETWORKS && batch.relisted.is_some() {
            let unlisted = self.unlisted_networks(batch).await;
            self.recalled = false;
            let why = self.unwitnessed(&unlisted).await;
            if why.is_some() {
                return why;
            }
        }
        let deleted = self.deleted(batch);
        // A few deletions among many records are not checked, because a loss of data affects more records.
        let known = self.reader.known(&batch.source);
        if deleted.is_empty() || deleted.len() * 2 < known {
            return None;
        }
        let asked = self.reader.with(|state| witnesses(&deleted, state, MAX_WITNESSES));
        self.unwitnessed(&asked).await
    }

    /// Returns the reason why the history of the store, to which a watch has reconnected, is not the remembered one. The
    /// watch only compares its own prefix, and the lost part of the history may not contain keys of that prefix.
    async fn other_history(&self, batch: &Batch) -> Option<String> {
        let divergence = batch.relisted.as_ref().and_then(|relisted| relisted.divergence.clone());
        if divergence.is_some() {
            return divergence;
        }
        let may_have_gone_back = match &batch.relisted {
            // Another source may have delivered a later listing before this one, so the store's current position decides.
            Some(relisted) => self.memory.contradiction(relisted.position).is_some(),
            None => batch.resumed,
        };
        if may_have_gone_back {
            let why = self.contradicting_position().await;
            if why.is_some() {
                return why;
            }
        }
        let is_first = !self.recalled && !self.seen.contains_key(&batch.source);
        match batch.resumed || (batch.relisted.is_some() && !is_first) {
            true => self.lost_put().await,
            false => None,
        }
    }

    /// Returns the reason why the store, at its current position, is not the remembered one.
    async fn contradicting_position(&self) -> Option<String> {
        loop {
            match self.store.position().await {
                Ok(position) => return self.memory.contradiction(position),
                Err(error) => pause(&error).await,
            }
        }
    }

    /// Returns the reason why the newest put that this process or an earlier one has seen is not in the store's history.
    async fn lost_put(&self) -> Option<String> {
        loop {
            match found(&self.store, self.memory.newest.as_ref()).await {
                Ok(Found::Other) => return self.memory.newest.as_ref().map(missing_put),
                Ok(_) => return None,
                Err(error) => pause(&error).await,
            }
        }
    }

    /// Witnesses of the networks of the API that are missing in the listing of the networks' records.
    async fn unlisted_networks(&self, batch: &Batch) -> Vec<Witness> {
        let id = |key: &Key| match key {
            Key::Network(id) => Some(id.clone()),
            _ => None,
        };
        let listed = batch.updates.iter().filter_map(put_key).filter_map(id).collect();
        loop {
            match unlisted_networks(&self.store, &listed).await {
                Ok(unlisted) => return unlisted,
                Err(error) => pause(&error).await,
            }
        }
    }

    /// Returns the deletions of the batch.
    fn deleted(&self, batch: &Batch) -> Vec<Deletion> {
        let is_first = batch.updates.iter().any(|update| matches!(update.event, Event::Init));
        // A listing does not show when a key was deleted, only that it was after the previous batch.
        let earliest = self.seen.get(&batch.source).map_or(0, |seen| seen + 1);
        if !is_first {
            let deletion = |update: &Update| {
                let Event::Delete(key) = &update.event else { return None };
                let earliest = if batch.relisted.is_some() { earliest } else { update.revision };
                Some(Deletion { key: key.clone(), earliest, latest: update.revision })
            };
            return batch.updates.iter().filter_map(deletion).collect();
        }
        let latest = batch.position().1;
        let listed: BTreeSet<&Key> = batch.updates.iter().filter_map(put_key).collect();
        let unlisted = self.reader.keys(&batch.source).into_iter().filter(|key| !listed.contains(key));
        unlisted.map(|key| Deletion { key, earliest, latest }).collect()
    }

    /// Returns the contradiction to the assumption that netmaster made the changes with these witnesses.
    async fn unwitnessed(&mut self, asked: &[Witness]) -> Option<String> {
        let deadline = Instant::now() + WITNESS_TIMEOUT;
        loop {
            let result = async {
                if let Some(why) = self.other_store().await? {
                    return Ok(Some((why, None)));
                }
                for witness in asked {
                    if let Some(why) = witness.missing(&self.store).await? {
                        return Ok(Some((why, Some(witness.clone()))));
                    }
                }
                Ok::<_, Error>(None)
            };
            match result.await {
                Ok(None) => return None,
                Ok(Some((why, witness))) if witness.is_none() || Instant::now() >= deadline => {
                    self.memory.missing = witness.into_iter().collect();
                    return Some(why);
                }
                // A large change may be in progress.
                Ok(Some(_)) => {}
                Err(error) => tracing::warn!("check deleted records: {}; retrying", one_line(&error)),
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the reason why this is not the remembered store, according to its position and identity.
    async fn other_store(&self) -> Result<Option<String>, Error> {
        let position = self.store.position().await?;
        if let Some(why) = self.memory.contradiction(position) {
            return Ok(Some(why));
        }
        let identity = self.store.get(&Key::ClusterIdentity.to_string()).await?.map(|kv| identity_in(&kv));
        Ok(self.memory.other_identity(identity.as_deref()))
    }

    /// Applies the store again if its data is restored, or if an operator has accepted it. The record of the acceptance
    /// is deleted afterwards, when the file contains the result: the answer to the deletion may be lost, and the agent
    /// may be killed after it.
    async fn try_release(&mut self, writer: &mut Writer) -> bool {
        let result = async {
            let acceptance = Acceptance::new(&self.store, &self.node.host);
            if acceptance.is_of(&self.memory.regression_id).await? {
                let Position { cluster, revision } = self.store.position().await?;
                let host = self.memory.host.take();
                self.memory = Memory { cluster: Some(cluster), revision, host, ..Memory::default() };
                self.seen.clear();
                writer.restart();
                tracing::warn!("the store was accepted by an operator; following it");
                return Ok(true);
            }
            let back = self.other_store().await?.is_none()
                && found(&self.store, self.memory.newest.as_ref()).await? == Found::Same
                && self.none_missing().await?;
            if back {
                self.memory.regressed = None;
                self.memory.regression_id.clear();
                tracing::info!("the store's data is back; following it");
            }
            Ok::<_, Error>(back)
        };
        match result.await {
            Ok(true) => {
                self.recalled = false;
                self.memory.missing.clear();
                self.save();
                self.status.send_replace(None);
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::debug!("check the regressed store: {}", one_line(&error));
                false
            }
        }
    }

    async fn none_missing(&self) -> Result<bool, Error> {
        for witness in &self.memory.missing {
            if witness.missing(&self.store).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the regression in the memory.
fn regression(memory: &Memory, node: &Node) -> Option<Regression> {
    let why = memory.regressed.clone()?;
    Some(Regression { id: memory.regression_id.clone(), why, host: node.host.clone() })
}

fn put_key(update: &Update) -> Option<&Key> {
    match &update.event {
        Event::InitApply(key, _) | Event::Apply(key, _) => Some(key),
        _ => None,
    }
}

fn missing_put(put: &Put) -> String {
    format!("the store's history lacks {} of revision {}", put.key, put.mod_revision)
}

/// Whether a put is part of the store's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Same,
    /// The revision is compacted, or no put is remembered.
    Unknown,
    Other,
}

async fn found(store: &Store, put: Option<&Put>) -> Result<Found, Error> {
    let Some(put) = put else { return Ok(Found::Unknown) };
    match store.get_at(&put.key, put.mod_revision).await {
        Ok(value) => Ok(match value.as_ref().map(Put::of) {
            Some(same) if same == *put => Found::Same,
            _ => Found::Other,
        }),
        Err(error) if error.is_compacted() => Ok(Found::Unknown),
        Err(error) => Err(error),
    }
}

/// Waits before a read is repeated.
async fn pause(error: &Error) {
    tracing::warn!("compare the store with what it was: {}; retrying", one_line(error));
    sleep(POLL_INTERVAL).await;
}

#[cfg(test)]
mod tests;
