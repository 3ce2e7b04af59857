//! One frame through one pinned program.

use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use contiv_abi::DropReason;
use nix::{errno::Errno, libc};

use crate::node::Node;

/// What the program said, in the kernel's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// For the next program and the host's stack (`TC_ACT_UNSPEC`).
    Next,
    /// No further (`TC_ACT_SHOT`): dropped, or all copies sent.
    Shot,
    /// To another interface (`TC_ACT_REDIRECT`).
    Redirect,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: Code,
    pub(crate) bytes: Vec<u8>,
    /// The reasons that were counted meanwhile.
    pub(crate) dropped: Vec<DropReason>,
}

impl Outcome {
    /// Says where it goes, and that it is as it was.
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

    /// Copies have gone out and the frame itself is done with.
    #[track_caller]
    pub(crate) fn assert_flooded(&self) {
        assert_eq!((self.code, &self.dropped[..]), (Code::Shot, &[][..]));
    }
}

/// Gives `frame` to a program as if it had come in by `link`.
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

/// A pinned program, and the interface that frames seem to come in by.
pub(crate) struct Target {
    program: SchedClassifier,
    /// `struct __sk_buff`: all zero but the interface.
    context: [u8; 192],
}

impl Target {
    pub(crate) fn new(node: &Node, program: &str, link: &str) -> Result<Target> {
        let mut context = [0; 192];
        context[40..44].copy_from_slice(&node.ifindex(link)?.to_ne_bytes());
        Ok(Target { program: SchedClassifier::from_pin(node.pin(program))?, context })
    }

    /// The same for frames with a mark.
    pub(crate) fn marked(mut self, mark: u32) -> Target {
        self.context[8..12].copy_from_slice(&mark.to_ne_bytes());
        self
    }

    /// What the program says of a frame, and what it made of it. In the namespace of the interface.
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

    /// Gives the program a frame with the sum over it that a device may have made (`CHECKSUM_COMPLETE`). It fails with
    /// `EBADMSG` if that is another than the packet's afterwards, with `EINVAL` on kernels that do not know this kind of run.
    pub(crate) fn give_summed(&self, frame: &[u8]) -> Result<(), Errno> {
        const TEST_RUN: libc::c_int = 10;
        const CHECKSUM_COMPLETE: u64 = 1 << 2;
        let program = self.program.fd().map_err(|_| Errno::EBADF)?.as_fd().as_raw_fd();
        let mut attributes = [0_u64; 10];
        // The program; the frame and its length; how often; the context and its length; the flags.
        attributes[0] = u64::from(program.cast_unsigned());
        attributes[1] = frame.len() as u64;
        attributes[2] = frame.as_ptr() as u64;
        attributes[4] = 1;
        attributes[5] = self.context.len() as u64;
        attributes[6] = self.context.as_ptr() as u64;
        attributes[8] = CHECKSUM_COMPLETE;
        // SAFETY: the kernel reads what the pointers are to, which outlives the call, and writes into `attributes`.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, TEST_RUN, attributes.as_mut_ptr(), size_of_val(&attributes))
        };
        Errno::result(result).map(drop)
    }
}
