//! `--watch`.

use std::{io::Write, thread, time::Duration};

use crate::{
    error::{Error, one_line},
    output::printable,
};

/// Time between two requests.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs `show` once; with `watch` repeatedly, and writes its output when it differs from the one before. Failures after the
/// first output are reported on standard error and do not end the command.
pub fn show(
    watch: bool,
    out: &mut dyn Write,
    show: impl Fn(&mut dyn Write) -> Result<(), Error>,
) -> Result<(), Error> {
    if !watch {
        return show(out);
    }
    let mut shown: Vec<u8> = vec![];
    show(&mut shown)?;
    out.write_all(&shown)?;
    out.flush()?;
    let mut reported = None;
    loop {
        thread::sleep(INTERVAL);
        let mut text: Vec<u8> = vec![];
        match show(&mut text) {
            Ok(()) => {
                reported = None;
                if text != shown {
                    writeln!(out)?;
                    out.write_all(&text)?;
                    out.flush()?;
                    shown = text;
                }
            }
            Err(error) => {
                let line = one_line(&error);
                if reported.as_ref() != Some(&line) {
                    eprintln!("netctl: {}", printable(&line));
                }
                reported = Some(line);
            }
        }
    }
}
