//! `scp [-r] FILE... USER@ADDRESS:FOLDER/` between machines: a tar archive over TCP in place of SSH.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, bail};

pub(super) const PORT: u16 = 22;

/// Sends the files and waits until they are written.
pub(super) fn run(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<_> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let Some((target, files)) = words.split_last() else { bail!("expected FILE... USER@ADDRESS:FOLDER") };
    let Some((host, folder)) = target.split_once(':') else {
        bail!("{target}: expected USER@ADDRESS:FOLDER")
    };
    let address = host.rsplit('@').next().unwrap_or(host);
    let mut stream = TcpStream::connect((address, PORT)).with_context(|| format!("connect to {address}"))?;
    writeln!(stream, "{folder}")?;
    let mut tar = Command::new("tar");
    tar.args(["-cf", "-"]);
    for file in files {
        let path = Path::new(file.as_str());
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let name = path.file_name().with_context(|| format!("{file}: expected a file"))?;
        tar.arg("-C").arg(std::path::absolute(parent.unwrap_or(Path::new(".")))?).arg(name);
    }
    let mut tar = tar.stdout(Stdio::piped()).spawn().context("start tar")?;
    io::copy(tar.stdout.as_mut().context("read from tar")?, &mut stream)?;
    if !tar.wait()?.success() {
        bail!("tar failed");
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer != "ok" {
        bail!("copy to {target}: {answer}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Receives files until the machine ends.
pub(super) fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let result = stream.context("accept a copy").and_then(receive);
        if let Err(error) = result {
            eprintln!("scp: {error:#}");
        }
    }
}

fn receive(stream: TcpStream) -> Result<()> {
    let mut answer = stream.try_clone()?;
    let mut stream = BufReader::new(stream);
    let mut folder = String::new();
    stream.read_line(&mut folder)?;
    let mut tar = Command::new("tar")
        .args(["--no-same-owner", "-xf", "-", "-C", folder.trim_end()])
        .stdin(Stdio::piped())
        .spawn()
        .context("start tar")?;
    io::copy(&mut stream, tar.stdin.as_mut().context("write to tar")?)?;
    drop(tar.stdin.take());
    // PID 1 may have collected the process already.
    let done = tar.wait().map_or(true, |status| status.success());
    answer.write_all(if done { b"ok" } else { b"tar failed" })?;
    Ok(())
}
