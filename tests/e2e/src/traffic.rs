//! TCP between two namespaces: how much, and how many connections.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::{
    socket::{setsockopt, sockopt},
    time::{TimeVal, TimeValLike as _},
};
use testkit::Netns;

const PATIENCE: Duration = Duration::from_secs(5);
/// How long `accept` waits before it looks whether all is over.
const LOOK: i64 = 100;
const CHUNK: usize = 128 << 10;

/// Bits per second from one namespace to an address in another.
pub fn throughput(from: &Netns, to: &Netns, address: IpAddr, duration: Duration) -> Result<f64> {
    let receive = |listener: &TcpListener, over: &AtomicBool| -> Result<f64> {
        let Some(mut stream) = accept(listener, over)? else { return Ok(0.0) };
        stream.set_read_timeout(Some(PATIENCE))?;
        let (start, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; CHUNK]);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64()),
                read => bytes += read,
            }
        }
    };
    let send = |server: SocketAddr| -> Result<()> {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE).context("connect")?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (start, chunk) = (Instant::now(), vec![0; CHUNK]);
        while start.elapsed() < duration {
            stream.write_all(&chunk).context("send")?;
        }
        Ok(())
    };
    between(from, to, address, receive, send).map(|(rate, ())| rate)
}

/// Connections per second, one after the other: connect, one byte there and back, reset.
pub fn connection_rate(from: &Netns, to: &Netns, address: IpAddr, duration: Duration) -> Result<f64> {
    let echo = |listener: &TcpListener, over: &AtomicBool| -> Result<()> {
        while let Some(mut stream) = accept(listener, over)? {
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut byte = [0];
            // The client's reset may come before its answer is read here.
            if stream.read_exact(&mut byte).is_ok() {
                let _ = stream.write_all(&byte);
            }
        }
        Ok(())
    };
    let count = |server: SocketAddr| -> Result<f64> {
        let (start, mut connections, mut byte) = (Instant::now(), 0_u32, [7]);
        while start.elapsed() < duration {
            let mut stream = TcpStream::connect_timeout(&server, PATIENCE).context("connect")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(&byte)?;
            stream.read_exact(&mut byte).context("read the echo")?;
            // A reset leaves no TIME_WAIT, so that ports do not run out.
            setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
            connections += 1;
        }
        Ok(f64::from(connections) / start.elapsed().as_secs_f64())
    };
    between(from, to, address, echo, count).map(|((), rate)| rate)
}

/// Runs a server in one namespace and a client in another, and gives what both found.
fn between<S: Send, C: Send>(
    from: &Netns,
    to: &Netns,
    address: IpAddr,
    serve: impl FnOnce(&TcpListener, &AtomicBool) -> Result<S> + Send,
    call: impl FnOnce(SocketAddr) -> Result<C> + Send,
) -> Result<(S, C)> {
    let over = AtomicBool::new(false);
    let (ready, listening) = mpsc::channel();
    let server = || {
        let listener = TcpListener::bind((address, 0)).with_context(|| format!("listen on {address}"))?;
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::milliseconds(LOOK))?;
        ready.send(listener.local_addr()?)?;
        serve(&listener, &over)
    };
    thread::scope(|scope| {
        let server = scope.spawn(|| to.run(server));
        let client = listening
            .recv_timeout(PATIENCE)
            .context("the server does not listen")
            .and_then(|server| from.run(|| call(server)).with_context(|| format!("TCP to {server}")));
        over.store(true, Ordering::SeqCst);
        let served = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The client's error is the one that tells what happened.
        let client = client?;
        Ok((served?, client))
    })
}

/// The next connection; none when all is over.
fn accept(listener: &TcpListener, over: &AtomicBool) -> Result<Option<TcpStream>> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if over.load(Ordering::SeqCst) {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error).context("accept"),
        }
    }
}
