//! Pinned programs and maps of an agent: runs single frames through programs, and reads run times and memory.

use std::{
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use aya::{
    maps::MapData,
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
    sys::{Stats, enable_stats},
};

use super::assembled::{self, Kind};
use crate::{cluster::Pod, processor};

/// A program, and the ingress interface of its frames. Use it in the namespace of the interface.
pub(super) struct Target {
    program: SchedClassifier,
    /// `struct __sk_buff`: zero except for the interface.
    context: [u8; 192],
}

impl Target {
    pub(super) fn open(pin: &Path, ifindex: u32) -> Result<Target> {
        let mut context = [0; 192];
        context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
        let program = SchedClassifier::from_pin(pin).with_context(|| format!("open {}", pin.display()))?;
        Ok(Target { program, context })
    }

    /// Runs the program on a frame, writes the resulting frame to `out`, and returns the code and the duration that the
    /// kernel measured.
    pub(super) fn run(&self, frame: &[u8], out: &mut [u8]) -> Result<(u32, Duration)> {
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(out),
            ctx_in: Some(&self.context),
            ..TestRunOptions::new()
        };
        let result = self.program.test_run(options).context("run a frame")?;
        Ok((result.return_value, result.duration))
    }
}

/// Programs whose run time is measured.
pub(super) struct RunTime(Vec<SchedClassifier>);

impl RunTime {
    /// Opens the named programs below each folder.
    pub(super) fn open(folders: &[&Path], names: &[&str]) -> Result<RunTime> {
        let mut programs = vec![];
        for folder in folders {
            for name in names {
                let pin = find(folder, name)?;
                programs.push(
                    SchedClassifier::from_pin(&pin).with_context(|| format!("open {}", pin.display()))?,
                );
            }
        }
        Ok(RunTime(programs))
    }

    /// Measures run time and number of runs during `work`. The kernel keeps statistics only meanwhile, because they cost time.
    pub(super) fn during(&self, work: impl FnOnce() -> Result<()>) -> Result<(Duration, u64)> {
        let _statistics = enable_stats(Stats::RunTime).context("enable run time statistics")?;
        let before = self.sum()?;
        work()?;
        let after = self.sum()?;
        Ok((after.0 - before.0, after.1 - before.1))
    }

    fn sum(&self) -> Result<(Duration, u64)> {
        self.0.iter().try_fold((Duration::ZERO, 0), |(time, runs), program| {
            let info = program.info()?;
            Ok((time + info.run_time(), runs + info.run_count()))
        })
    }
}

/// Pins an empty program, which measures the overhead of the method.
pub(super) fn pin_empty(pin: &Path) -> Result<()> {
    const DROP: i32 = 2;
    assembled::pin(Kind::SchedCls, &assembled::returns(DROP), pin)
}

/// Reads a chain of cache lines of an array: the minimum duration of a lookup in tables of the same size that are not in the
/// CPU cache.
pub(super) struct Lines {
    target: Target,
    bytes: u32,
}

impl Lines {
    /// Number of lines that a call reads.
    pub(super) const COUNT: u32 = 8;
    /// Size of a line in bytes.
    pub(super) const BYTES: u32 = assembled::LINE;

    /// Creates the array, rounded up to a power of two. The program is pinned only until it is open.
    pub(super) fn open(pin: &Path, bytes: u64, ifindex: u32) -> Result<Lines> {
        let bytes = u32::try_from(bytes.max(u64::from(assembled::LINE)).next_power_of_two())?;
        let count = bytes / assembled::LINE;
        let mut value = vec![0; bytes as usize];
        for (line, slot) in value.chunks_exact_mut(assembled::LINE as usize).enumerate() {
            // Full period modulo a power of two: visits all lines before one repeats, and no neighbours in sequence.
            let next = (line as u32).wrapping_mul(0x9e37_79b1 & !3 | 1).wrapping_add(0x3c6e_f373) % count;
            slot[..4].copy_from_slice(&(next * assembled::LINE).to_le_bytes());
        }
        let map = assembled::array(&value)?;
        assembled::pin(Kind::SchedCls, &assembled::reads_lines(&map, bytes, Lines::COUNT), pin)?;
        let target = Target::open(pin, ifindex)?;
        fs::remove_file(pin)?;
        Ok(Lines { target, bytes })
    }

    /// As [`Target::run`]; `number` selects the first line.
    pub(super) fn read(&self, number: u32, frame: &mut [u8], out: &mut [u8]) -> Result<Duration> {
        let line = spread(number) % (self.bytes / assembled::LINE);
        frame[30..34].copy_from_slice(&(line * assembled::LINE).to_le_bytes());
        Ok(self.target.run(frame, out)?.1)
    }
}

/// Bijective hash of a number.
pub(super) const fn spread(number: u32) -> u32 {
    let mixed = (number ^ number >> 16).wrapping_mul(0x7feb_352d);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x846c_a68b);
    mixed ^ mixed >> 16
}

/// Mean nanoseconds per call of each side. Each number calls every side once, in an order that varies: periodic disturbances
/// and the state of the CPU caches affect all sides equally.
pub(super) fn interleaved<const SIDES: usize>(
    calls: usize,
    mut call: impl FnMut(usize, usize) -> Result<Duration>,
) -> Result<[f64; SIDES]> {
    // A longer call was preempted.
    const INTERRUPTED: Duration = Duration::from_micros(50);
    let mut sums = [(Duration::ZERO, 0_u32); SIDES];
    for number in 0..calls {
        let first = (spread((number / SIDES) as u32) as usize % SIDES + number) % SIDES;
        for turn in 0..SIDES {
            let side = (first + turn) % SIDES;
            let took = call(side, number)?;
            if took < INTERRUPTED {
                let (sum, count) = &mut sums[side];
                (*sum, *count) = (*sum + took, *count + 1);
            }
        }
    }
    Ok(sums.map(|(sum, count)| sum.as_nanos() as f64 / f64::from(count)))
}

/// Finds a pin below a folder, by name.
pub(super) fn find(folder: &Path, name: &str) -> Result<PathBuf> {
    search(folder, name)?.with_context(|| format!("find {name}: no such pin in {}", folder.display()))
}

fn search(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.ends_with(name) {
            return Ok(Some(path));
        }
        if path.is_dir()
            && let Some(found) = search(&path, name)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Memory of a map in bytes, as the kernel reports it.
pub(super) fn memory(pins: &Path, map: &str) -> Result<u64> {
    let data = MapData::from_pin(find(pins, map)?)?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd()))?;
    let line = info.lines().find_map(|line| line.strip_prefix("memlock:"));
    line.with_context(|| format!("no memlock of {map}"))?.trim().parse().context("memlock")
}

/// Index of the host end of a pod's veth pair.
pub(super) fn port_of(pod: &Pod) -> Result<u32> {
    pod.netns().interface("eth0")?.peer.context("eth0 is no end of a veth pair")
}

/// Pins the calling thread to one CPU.
pub(super) fn pin_thread() -> Result<()> {
    processor::pin_to(0)
}

pub(super) fn median(mut series: Vec<f64>) -> f64 {
    series.sort_by(f64::total_cmp);
    series.get(series.len() / 2).copied().unwrap_or(f64::NAN)
}
