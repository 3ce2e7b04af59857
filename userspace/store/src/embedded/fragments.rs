//! Divides the events of a large watch response, as etcd does for watches with the option `fragment`.

use super::MAX_MESSAGE;
use etcd_client::proto::{PbEvent, PbKeyValue};

/// Upper bound of what the encoding adds to a key-value pair: tags, lengths and numbers.
const ENCODING: usize = 80;

/// Divides the events into parts that fit into a message each. A part has at least one event, and a
/// revision may be in several parts. Without events there is one part.
pub(super) fn divide(events: Vec<PbEvent>) -> Vec<Vec<PbEvent>> {
    let mut parts = Vec::new();
    let (mut part, mut bytes) = (Vec::new(), 0);
    for event in events {
        let size = size(&event);
        if !part.is_empty() && bytes + size > MAX_MESSAGE {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += size;
        part.push(event);
    }
    parts.push(part);
    parts
}

fn size(event: &PbEvent) -> usize {
    let size = |kv: &PbKeyValue| kv.key.len() + kv.value.len() + ENCODING;
    event.kv.iter().chain(&event.prev_kv).map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes_of_parts(sizes: &[usize]) -> Vec<usize> {
        let event = |size: &usize| {
            let kv = PbKeyValue { value: vec![b'x'; *size], ..PbKeyValue::default() };
            PbEvent { kv: Some(kv), ..PbEvent::default() }
        };
        divide(sizes.iter().map(event).collect()).iter().map(Vec::len).collect()
    }

    #[test]
    fn parts_fit_into_a_message() {
        assert_eq!(sizes_of_parts(&[]), [0]);
        assert_eq!(sizes_of_parts(&[1, 2, 3]), [3]);
        let half = MAX_MESSAGE / 2 - ENCODING;
        assert_eq!(sizes_of_parts(&[half, half, 0, half]), [2, 2]);
        // A single event may be larger.
        assert_eq!(sizes_of_parts(&[1, 2 * MAX_MESSAGE, 1]), [1, 1, 1]);
    }
}
