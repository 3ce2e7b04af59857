//! Lists of the node's interfaces.
//!
//! The kernel sends a list in parts. It sets `NLM_F_DUMP_INTR` if interfaces were added or removed between two parts.
//! Before Linux 6.9 it then continues at a shifted position, and omits interfaces that existed all the time.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use rtnetlink::{
    Handle,
    packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::{RouteNetlinkMessage, link::LinkMessage},
};
use tokio::{sync::Mutex, time::sleep};

use super::error::{DUMP_ATTEMPTS, Error};

/// Pause after an interrupted attempt, because interfaces of pods are added and removed in bursts.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Lists the interfaces. A netlink socket supports one dump at a time, so `lock` is held meanwhile.
pub(super) async fn links(handle: &Handle, lock: &Mutex<()>) -> Result<Vec<LinkMessage>, Error> {
    let _guard = lock.lock().await;
    let mut handle = handle.clone();
    let dump = || {
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(LinkMessage::default()));
        request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        handle.request(request)
    };
    let links = complete(dump).await.map_err(Error::netlink("list", "the node's interfaces"))?;
    links.ok_or(Error::Interrupted)
}

/// Repeats a dump until it is complete; `None` if each attempt was interrupted.
async fn complete<S>(
    mut dump: impl FnMut() -> Result<S, rtnetlink::Error>,
) -> Result<Option<Vec<LinkMessage>>, rtnetlink::Error>
where
    S: Stream<Item = NetlinkMessage<RouteNetlinkMessage>> + Unpin,
{
    for attempt in 0..DUMP_ATTEMPTS {
        if attempt > 0 {
            sleep(RETRY_INTERVAL).await;
        }
        if let Some(links) = read(dump()?).await? {
            return Ok(Some(links));
        }
    }
    Ok(None)
}

/// Reads the answers of a dump; `None` if it was interrupted.
async fn read<S>(mut answers: S) -> Result<Option<Vec<LinkMessage>>, rtnetlink::Error>
where
    S: Stream<Item = NetlinkMessage<RouteNetlinkMessage>> + Unpin,
{
    let (mut links, mut is_interrupted) = (vec![], false);
    // Reads to the end even after an interruption: until then the kernel rejects the next dump.
    while let Some(answer) = answers.next().await {
        let (header, payload) = answer.into_parts();
        is_interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
        match payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => links.push(link),
            NetlinkPayload::Error(error) => return Err(rtnetlink::Error::NetlinkError(error)),
            other => return Err(rtnetlink::Error::UnexpectedMessage(NetlinkMessage::new(header, other))),
        }
    }
    Ok((!is_interrupted).then_some(links))
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use rtnetlink::packet_core::NLM_F_MULTIPART;

    use super::*;

    fn answer(index: u32, flags: u16) -> NetlinkMessage<RouteNetlinkMessage> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        let mut answer = NetlinkMessage::from(RouteNetlinkMessage::NewLink(link));
        answer.header.flags = NLM_F_MULTIPART | flags;
        answer
    }

    /// Returns the indexes of the listed interfaces, and the number of attempts, of which the first ones are interrupted.
    /// Each attempt has two answers; the second one contains the number of the attempt.
    async fn listed(interrupted: u32) -> (Option<Vec<u32>>, u32) {
        let mut attempts = 0;
        let dump = || {
            attempts += 1;
            let flags = if attempts <= interrupted { NLM_F_DUMP_INTR } else { 0 };
            Ok(stream::iter([answer(7, flags), answer(attempts, 0)]))
        };
        let links = complete(dump).await.unwrap();
        let indexes = links.map(|links| links.iter().map(|link| link.header.index).collect());
        (indexes, attempts)
    }

    #[tokio::test]
    async fn interrupted_lists_are_read_again() {
        assert_eq!(listed(0).await, (Some(vec![7, 1]), 1));
        assert_eq!(listed(2).await, (Some(vec![7, 3]), 3));
        assert_eq!(listed(DUMP_ATTEMPTS).await, (None, DUMP_ATTEMPTS));
    }
}
