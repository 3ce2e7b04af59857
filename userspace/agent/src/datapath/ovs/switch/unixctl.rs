//! Commands of ovs-vswitchd on its control socket (JSON-RPC, as `ovs-appctl` sends them).

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

/// Time limit of a command.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "read {}, which names the control socket of ovs-vswitchd (is it beside the socket of the database, and \
         does ovs-vswitchd run?)",
        path.display()
    )]
    PidFile { path: PathBuf, source: io::Error },
    #[error("{}: expected a process id", path.display())]
    NoPid { path: PathBuf },
    #[error("control socket {}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("{command}: no reply within {limit:?}")]
    Timeout { command: &'static str, limit: Duration },
    #[error("{command}: rejected by ovs-vswitchd: {why}")]
    Refused { command: &'static str, why: String },
    #[error("{command}: malformed reply")]
    Malformed { command: &'static str },
}

/// Runs a command of the ovs-vswitchd whose pid file is beside the socket of the database.
pub(crate) async fn run(database: &Path, command: &'static str, words: &[String]) -> Result<String, Error> {
    run_within(REPLY_TIMEOUT, database, command, words).await
}

/// Runs a command like [`run`], with another time limit.
pub(crate) async fn run_within(
    limit: Duration,
    database: &Path,
    command: &'static str,
    words: &[String],
) -> Result<String, Error> {
    let socket = control_socket(database.parent().unwrap_or(Path::new("")))?;
    let failed = |source| Error::Socket { path: socket.clone(), source };
    let request = json!({"id": 0, "method": command, "params": words}).to_string();
    let exchange = async {
        let mut stream = UnixStream::connect(&socket).await.map_err(failed)?;
        stream.write_all(request.as_bytes()).await.map_err(failed)?;
        let mut reply = vec![];
        loop {
            if stream.read_buf(&mut reply).await.map_err(failed)? == 0 {
                return Err(Error::Malformed { command });
            }
            // The server keeps the connection open; a reply is one object. A long one comes in many pieces.
            if reply.trim_ascii_end().last() != Some(&b'}') {
                continue;
            }
            match serde_json::from_slice::<Value>(&reply) {
                Ok(reply) => return Ok(reply),
                Err(error) if error.is_eof() => {}
                Err(_) => return Err(Error::Malformed { command }),
            }
        }
    };
    let reply = timeout(limit, exchange).await.map_err(|_| Error::Timeout { command, limit })??;
    match (reply["error"].as_str(), reply["result"].as_str()) {
        (Some(why), _) => Err(Error::Refused { command, why: why.trim().replace('\n', "; ") }),
        (None, Some(text)) => Ok(text.to_owned()),
        (None, None) => Err(Error::Malformed { command }),
    }
}

fn control_socket(directory: &Path) -> Result<PathBuf, Error> {
    let path = directory.join("ovs-vswitchd.pid");
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|source| Error::PidFile { path: path.clone(), source })?;
    let pid: u32 = text.trim().parse().map_err(|_| Error::NoPid { path })?;
    Ok(directory.join(format!("ovs-vswitchd.{pid}.ctl")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_named_by_the_pid_file() {
        let directory = testkit::scratch_dir("unixctl").unwrap();
        let missing = control_socket(directory.path()).unwrap_err().to_string();
        assert!(missing.contains("ovs-vswitchd.pid"), "{missing}");
        let pid = directory.path().join("ovs-vswitchd.pid");
        std::fs::write(&pid, "4711\n").unwrap();
        assert_eq!(control_socket(directory.path()).unwrap(), directory.path().join("ovs-vswitchd.4711.ctl"));
        std::fs::write(&pid, "none").unwrap();
        assert!(matches!(control_socket(directory.path()), Err(Error::NoPid { .. })));
    }

    #[tokio::test]
    async fn a_command_without_reply_has_its_own_time_limit() {
        let directory = testkit::scratch_dir("unixctl").unwrap();
        std::fs::write(directory.path().join("ovs-vswitchd.pid"), "4711").unwrap();
        let socket = directory.path().join("ovs-vswitchd.4711.ctl");
        let _silent = std::os::unix::net::UnixListener::bind(socket).unwrap();
        let limit = Duration::from_millis(20);
        let error = run_within(limit, &directory.path().join("db.sock"), "dump", &[]).await.unwrap_err();
        assert_eq!(error.to_string(), "dump: no reply within 20ms");
    }
}
