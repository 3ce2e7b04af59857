//! `--watch`.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    client::{
        Client,
        listing::Selection,
        watch::{Change, Event, Start, Watch},
    },
    error::{Error, one_line},
    output::{printable, text},
};

/// Time between two requests where netmaster does not send changes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time to collect the changes that follow a change, as those of an `apply`.
const SETTLE: Duration = Duration::from_millis(200);
/// Events that are read ahead of their display.
const AHEAD: usize = 1024;

/// Writes what a command shows.
type Show<'a> = &'a dyn Fn(&mut dyn Write) -> Result<(), Error>;
/// Writes the objects of several selections.
type Render<'a> = &'a dyn Fn(&[Vec<Value>], &mut dyn Write) -> Result<(), Error>;

/// Runs `show` once; with `watch` every second, and writes its output when it differs from the one before. Failures after the
/// first output are reported on standard error and do not end the command.
pub fn show(watch: bool, out: &mut dyn Write, show: Show<'_>) -> Result<(), Error> {
    if !watch {
        return show(out);
    }
    let mut screen = Screen::start(out, show)?;
    loop {
        thread::sleep(INTERVAL);
        let problem = screen.update(show)?;
        screen.report(problem);
    }
}

/// Lists the objects of selections and writes them; with `watch` again whenever they change. netmaster sends the changes; one
/// that does not offer this is asked every second. Failures are reported as by [`show`].
pub fn objects(
    client: &Client,
    watch: bool,
    selections: &[Selection],
    out: &mut dyn Write,
    render: Render<'_>,
) -> Result<(), Error> {
    if !watch {
        let lists = selections.iter().map(|it| client.select(it).map(|listed| listed.objects));
        return render(&lists.collect::<Result<Vec<_>, _>>()?, out);
    }
    let (events, received) = mpsc::sync_channel(AHEAD);
    let followers: Result<Vec<Follower>, Error> =
        selections.iter().map(|it| Follower::start(client, it)).collect();
    let mut followers = Followers { all: followers?, events, received };
    let mut screen = Screen::start(out, &|out| render(&followers.lists(), out))?;
    loop {
        let mut problem = followers.open(client).err();
        followers.wait();
        if let Err(error) = followers.list(client) {
            problem = Some(error);
        }
        let shown = screen.update(&|out| render(&followers.lists(), out))?;
        screen.report(problem.or(shown));
    }
}

/// Output that is written again when it changes.
struct Screen<'a> {
    out: &'a mut dyn Write,
    shown: Vec<u8>,
    reported: Option<String>,
}

impl<'a> Screen<'a> {
    /// Writes the first output.
    fn start(out: &'a mut dyn Write, show: Show<'_>) -> Result<Screen<'a>, Error> {
        let mut shown: Vec<u8> = vec![];
        show(&mut shown)?;
        out.write_all(&shown)?;
        out.flush()?;
        Ok(Screen { out, shown, reported: None })
    }

    /// Writes the output after an empty line if it has changed. Returns why there is none. Fails if it cannot be written.
    fn update(&mut self, show: Show<'_>) -> Result<Option<Error>, Error> {
        let mut text: Vec<u8> = vec![];
        if let Err(error) = show(&mut text) {
            return Ok(Some(error));
        }
        if text != self.shown {
            writeln!(self.out)?;
            self.out.write_all(&text)?;
            self.out.flush()?;
            self.shown = text;
        }
        Ok(None)
    }

    /// Reports a failure once, until there is none or another one.
    fn report(&mut self, problem: Option<Error>) {
        let line = problem.as_ref().map(one_line);
        if let Some(line) = line.as_ref().filter(|_| line != self.reported) {
            eprintln!("netctl: {}", printable(line));
        }
        self.reported = line;
    }
}

/// What the reader of a stream sends: an event, or none at the end of the stream.
struct Message {
    follower: usize,
    /// Number of the stream of the follower.
    stream: u64,
    event: Option<Event>,
}

/// The objects of a selection, as far as they are known.
struct Follower {
    selection: Selection,
    objects: BTreeMap<String, Value>,
    /// Where a stream continues; none if the objects must be listed, because of an unknown history or because netmaster does
    /// not send changes.
    start: Option<Start>,
    stream: u64,
    is_open: bool,
}

impl Follower {
    fn start(client: &Client, selection: &Selection) -> Result<Follower, Error> {
        let (selection, objects) = (selection.clone(), BTreeMap::new());
        let mut follower = Follower { selection, objects, start: None, stream: 0, is_open: false };
        follower.list(client)?;
        Ok(follower)
    }

    fn list(&mut self, client: &Client) -> Result<(), Error> {
        let listed = client.select(&self.selection)?;
        self.objects = listed.objects.into_iter().map(|object| (text(&object, "key"), object)).collect();
        self.start = listed.revision.map(Start::List);
        Ok(())
    }

    /// Takes an event of the stream, or its end.
    fn take(&mut self, event: Option<Event>) {
        let Some(Event { change, revision }) = event else {
            self.is_open = false;
            return;
        };
        match change {
            Change::Put(object) => {
                self.objects.insert(text(&object, "key"), object);
            }
            Change::Delete(key) => {
                self.objects.remove(&key);
            }
            Change::Synced => {}
            Change::Gone => {
                (self.start, self.is_open) = (None, false);
                // What the stream still has is not taken.
                self.stream += 1;
                return;
            }
        }
        if let Some(revision) = revision {
            self.start = Some(Start::Event(revision));
        }
    }
}

struct Followers {
    all: Vec<Follower>,
    events: SyncSender<Message>,
    received: Receiver<Message>,
}

impl Followers {
    fn lists(&self) -> Vec<Vec<Value>> {
        self.all.iter().map(|follower| follower.objects.values().cloned().collect()).collect()
    }

    /// Opens the streams that are not open and have a start.
    fn open(&mut self, client: &Client) -> Result<(), Error> {
        for (at, follower) in self.all.iter_mut().enumerate().filter(|(_, follower)| !follower.is_open) {
            let Some(start) = &follower.start else { continue };
            let Some(watch) = client.watch(&follower.selection, start)? else {
                follower.start = None;
                continue;
            };
            follower.stream += 1;
            follower.is_open = true;
            let (stream, events) = (follower.stream, self.events.clone());
            // Ends with the stream, or with the process.
            thread::spawn(move || send(watch, at, stream, &events));
        }
        Ok(())
    }

    /// Waits for changes, and no longer than [`INTERVAL`] if a stream is not open.
    fn wait(&mut self) {
        let is_open = self.all.iter().all(|follower| follower.is_open);
        // The sender of this value keeps the channel open.
        let first = match is_open {
            true => self.received.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => self.received.recv_timeout(INTERVAL),
        };
        let Ok(first) = first else { return };
        self.take(first);
        let end = Instant::now() + SETTLE;
        while let Ok(message) = self.received.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.take(message);
        }
    }

    /// Lists again what no stream continues.
    fn list(&mut self, client: &Client) -> Result<(), Error> {
        let mut lost = self.all.iter_mut().filter(|follower| !follower.is_open && follower.start.is_none());
        lost.try_for_each(|follower| follower.list(client))
    }

    fn take(&mut self, message: Message) {
        let Message { follower, stream, event } = message;
        if let Some(follower) = self.all.get_mut(follower).filter(|follower| follower.stream == stream) {
            follower.take(event);
        }
    }
}

/// Sends the events of a stream until its end. Why it ended does not matter: the next attempt to open it tells.
fn send(mut watch: Watch, follower: usize, stream: u64, events: &SyncSender<Message>) {
    loop {
        let event = watch.next_event().ok().flatten();
        let is_end = event.is_none();
        if events.send(Message { follower, stream, event }).is_err() || is_end {
            return;
        }
    }
}
