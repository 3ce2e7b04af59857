//! Runs one frame through one pinned program.

use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use contiv_abi::DropReason;
use nix::{errno::Errno, libc};

use crate::node::Node;

/// Return code of a TC program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Continue with the next program and the host's stack (`TC_ACT_UNSPEC`).
    Next,
    /// Stop (`TC_ACT_SHOT`): dropped, or all copies sent.
    Shot,
    /// Redirect to another interface (`TC_ACT_REDIRECT`).
    Redirect,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: Code,
    pub(crate) bytes: Vec<u8>,
    /// Drop reasons counted during the run.
    pub(crate) dropped: Vec<DropReason>,
}

impl Outcome {
    /// Asserts that the frame is redirected unchanged.
    #[track_caller]
    pub(crate) fn assert_sent_on(&self, frame: &[u8]) {
        assert_eq!((self.code, &self.bytes[..], &self.dropped[..]), (Code::Redirect, frame, &[][..]));
    }

    #[track_caller]
    pub(crate) fn assert_answered(&self, answer: &[u8]) {
        assert_eq!((self.code, &self.bytes[..], &self.dropped[..]), (Code::Redirect, answer, &[][..]));
        testkit::packet::verify(&self.bytes).unwrap();
    }

    #[track_caller]
    pub(crate) fn assert_dropped(&self, reason: DropReason) {
        assert_eq!((self.code, &self.dropped[..]), (Code::Shot, &[reason][..]));
    }

    /// Asserts that copies were sent and the frame itself ended.
    #[track_caller]
    pub(crate) fn assert_flooded(&self) {
        assert_eq!((self.code, &self.dropped[..]), (Code::Shot, &[][..]));
    }
}

/// Runs a program on `frame` with `link` as the ingress interface.
pub(crate) fn run(node: &Node, program: &str, link: &str, frame: &[u8]) -> Result<Outcome> {
    let before = node.drops()?;
    let target = Target::new(node, program, link)?;
    let (code, bytes) = node.ns.run(|| target.give(frame))?;
    let mut dropped = vec![];
    for (reason, count) in node.drops()? {
        let new = count - before.get(&reason).copied().unwrap_or(0);
        ensure!(new <= 1, "{new} drops for {reason:?}");
        dropped.extend((new == 1).then_some(reason));
    }
    Ok(Outcome { code, bytes, dropped })
}

/// A pinned program and an ingress interface.
pub(crate) struct Target {
    program: SchedClassifier,
    /// `struct __sk_buff`: zero except for the interface.
    context: [u8; 192],
}

impl Target {
    pub(crate) fn new(node: &Node, program: &str, link: &str) -> Result<Target> {
        let mut context = [0; 192];
        context[40..44].copy_from_slice(&node.ifindex(link)?.to_ne_bytes());
        Ok(Target { program: SchedClassifier::from_pin(node.pin(program))?, context })
    }

    /// The same target for frames with a mark.
    pub(crate) fn marked(mut self, mark: u32) -> Target {
        self.context[8..12].copy_from_slice(&mark.to_ne_bytes());
        self
    }

    /// The same target for packets that are cut into so many frames on their way.
    pub(crate) fn segmented(mut self, frames: u32) -> Target {
        const BYTES: u32 = 100;
        // `gso_segs` and `gso_size` of `struct __sk_buff`.
        self.context[164..168].copy_from_slice(&frames.to_ne_bytes());
        self.context[176..180].copy_from_slice(&BYTES.to_ne_bytes());
        self
    }

    /// Runs the program in the namespace of the interface. Returns the code and the frame.
    pub(crate) fn give(&self, frame: &[u8]) -> Result<(Code, Vec<u8>)> {
        let mut bytes = vec![0; 4096];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut bytes),
            ctx_in: Some(&self.context),
            ..TestRunOptions::new()
        };
        let result = self
            .program
            .test_run(options)
            .with_context(|| format!("run a frame of {} bytes", frame.len()))?;
        bytes.truncate(usize::try_from(result.data_size_out)?);
        let code = match result.return_value as i32 {
            -1 => Code::Next,
            2 => Code::Shot,
            7 => Code::Redirect,
            other => anyhow::bail!("the program returned {other}"),
        };
        Ok((code, bytes))
    }

    /// Runs the program on a frame with a checksum computed by the device (`CHECKSUM_COMPLETE`). Fails with `EBADMSG`
    /// if the checksum does not match the packet afterwards, and with `EINVAL` on kernels without support.
    pub(crate) fn give_checksum_complete(&self, frame: &[u8]) -> Result<(), Errno> {
        const TEST_RUN: libc::c_int = 10;
        const CHECKSUM_COMPLETE: u64 = 1 << 2;
        let program = self.program.fd().map_err(|_| Errno::EBADF)?.as_fd().as_raw_fd();
        let mut attributes = [0_u64; 10];
        // Program; frame and length; repeat; context and length; flags.
        attributes[0] = u64::from(program.cast_unsigned());
        attributes[1] = frame.len() as u64;
        attributes[2] = frame.as_ptr() as u64;
        attributes[4] = 1;
        attributes[5] = self.context.len() as u64;
        attributes[6] = self.context.as_ptr() as u64;
        attributes[8] = CHECKSUM_COMPLETE;
        // SAFETY: the kernel reads the frame and the context, which outlive the call, and writes into `attributes`.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, TEST_RUN, attributes.as_mut_ptr(), size_of_val(&attributes))
        };
        Errno::result(result).map(drop)
    }
}
