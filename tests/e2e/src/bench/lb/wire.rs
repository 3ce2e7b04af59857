//! Millions of frames over a veth pair: `BPF_PROG_TEST_RUN` with live frames sends them from one end; a program on the other
//! end processes them in native XDP mode.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya_obj::programs::XdpAttachType;
use serde_json::Value;
use testkit::{Netns, xdp_context};

use crate::{bench::pinned::median, processor};

/// Median duration of a program for single frames that arrive on an interface of the namespace, in nanoseconds. Pins the
/// thread to one CPU.
pub(super) fn call(program: &Path, link: &str, frame: &[u8], calls: usize) -> Result<f64> {
    processor::pin_to(0)?;
    let program = open(program)?;
    let context = xdp_context(frame.len(), nix::net::if_::if_nametoindex(link)?);
    let mut out = vec![0; frame.len() + HEADROOM];
    let mut call = || -> Result<f64> {
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        Ok(program.test_run(options).context("run a frame")?.duration.as_nanos() as f64)
    };
    Ok(median((0..calls).map(|_| call()).collect::<Result<_>>()?))
}

/// Headroom before a frame, in bytes.
const HEADROOM: usize = 256;

/// Frames per batch, as in the kernel's driver.
const BATCH: u32 = 64;

/// One end of a veth pair.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) netns: Netns,
    pub(super) link: String,
}

impl End {
    /// Attaches a pinned program in native mode until the result is dropped.
    pub(super) fn attach(&self, program: &Path) -> Result<Xdp> {
        let what = || format!("attach {} to {}", program.display(), self.link);
        self.netns.run(|| {
            let mut program = open(program)?;
            program.attach(&self.link, XdpMode::Driver).with_context(what)?;
            Ok(program)
        })
    }

    fn received(&self) -> Result<u64> {
        let listing = self.netns.ip(&format!("-s -j link show dev {}", self.link))?;
        let listing: Value = serde_json::from_str(&listing).context("parse the output of ip")?;
        let packets = listing.pointer("/0/stats64/rx/packets").and_then(Value::as_u64);
        packets.with_context(|| format!("no packet counter of {}: {listing}", self.link))
    }
}

/// Counters of sent frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flood {
    pub(super) sent: u32,
    /// Frames received by the other end.
    pub(super) seen: u64,
    /// Frames received by the sender.
    pub(super) back: u64,
    pub(super) time: Duration,
}

/// A veth pair. The sender's end needs a program that drops: the driver accepts XDP frames only with a program.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    pub(super) sender: End,
    pub(super) node: End,
}

impl Wire {
    /// Sends copies of a frame, modified by the pinned program, from one CPU, which also processes them at the other end.
    pub(super) fn flood(&self, program: &Path, frame: &[u8], frames: u32) -> Result<Flood> {
        let (seen, back) = (self.node.received()?, self.sender.received()?);
        let time = self.sender.netns.run(|| {
            processor::pin_to(0)?;
            let program = open(program)?;
            let ifindex = nix::net::if_::if_nametoindex(self.sender.link.as_str())?;
            let context = xdp_context(frame.len(), ifindex);
            let options = TestRunOptions {
                data_in: Some(frame),
                ctx_in: Some(&context),
                repeat: frames,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::new()
            };
            let start = Instant::now();
            program.test_run(options).context("send live frames")?;
            Ok(start.elapsed())
        })?;
        let (seen, back) = (self.node.received()? - seen, self.sender.received()? - back);
        Ok(Flood { sent: frames, seen, back, time })
    }
}

fn open(pin: &Path) -> Result<Xdp> {
    Xdp::from_pin(pin, XdpAttachType::Interface).with_context(|| format!("open {}", pin.display()))
}
