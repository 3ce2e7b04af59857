//! `scp [-r] FILE... USER@ADDRESS:FOLDER/` between machines: a tar archive over TCP in place of SSH.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result, bail};

const PORT: u16 = 22;

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
    tar.args(["-cf", "-"]).stdout(Stdio::from(OwnedFd::from(stream.try_clone()?)));
    for file in files {
        let path = Path::new(file.as_str());
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let name = path.file_name().with_context(|| format!("{file}: expected a file"))?;
        tar.arg("-C").arg(std::path::absolute(parent.unwrap_or(Path::new(".")))?).arg(name);
    }
    if !tar.status().context("start tar")?.success() {
        bail!("tar failed");
    }
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer != "ok" {
        bail!("copy to {target}: {answer}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The server of a machine: receives files until the machine ends. It is a process of its own because PID 1 collects
/// all of its children.
pub(super) fn serve() -> Result<ExitCode> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).context("listen for copies")?;
    for stream in listener.incoming() {
        let mut stream = stream.context("accept a copy")?;
        let answer = match receive(&mut stream) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        // A client that has gone needs no answer.
        drop(stream.write_all(answer.as_bytes()));
    }
    Ok(ExitCode::SUCCESS)
}

fn receive(stream: &mut TcpStream) -> Result<()> {
    // Byte by byte: what follows the line is for tar.
    let mut folder = vec![];
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        folder.push(byte[0]);
    }
    let folder = String::from_utf8(folder)?;
    let status = Command::new("tar")
        .args(["--no-same-owner", "-xf", "-", "-C", &folder])
        .stdin(Stdio::from(OwnedFd::from(stream.try_clone()?)))
        .status()
        .context("start tar")?;
    if !status.success() {
        bail!("extract into {folder}: {status}");
    }
    Ok(())
}
