//! Backends of clients with session affinity, of another ABI version.

use std::collections::HashMap;

use contiv_abi::{
    AffinityBlock, Backend, Client, Member,
    maps::{AFFINITY, AFFINITY_CAPACITY, BACKENDS, BACKENDS_CAPACITY},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{btf, mmap::MmapArray, pins::Pins},
    },
};

/// Copies the backends of clients with session affinity. The key of a client contains its domain, which has the same
/// number in both versions.
pub(super) fn copy_affinity(own: &Pins, other: &Pins) -> Result<(), Error> {
    for name in [AFFINITY, BACKENDS] {
        if !btf::are_alike(&own.open_data(name)?, &other.open_data(name)?) {
            return Err(failed(format!("read the map {name}"), "it has another layout"));
        }
    }
    let blocks = |pins| mapped::<AffinityBlock>(pins, AFFINITY, AFFINITY_CAPACITY);
    let (from, mut to) = (blocks(other)?, blocks(own)?);
    let numbers = BackendNumbers::read(own, other)?;
    for index in 0..AFFINITY_CAPACITY as u32 {
        let Some(block) = from.get(index).filter(|block| *block != AffinityBlock::default()) else {
            continue;
        };
        let Some(current) = to.get(index) else { continue };
        let merged = merge(current, block, |member| numbers.translate(member));
        if merged != current {
            to.set(index, merged);
        }
    }
    Ok(())
}

/// Merges the clients of both blocks: all of `current`, and those of `other` that fit.
fn merge(
    current: AffinityBlock,
    other: AffinityBlock,
    translate: impl Fn(Member) -> Option<Member>,
) -> AffinityBlock {
    let mut merged = current;
    for client in other.clients.iter().filter(|client| client.tag != 0) {
        let known = merged.clients.iter().any(|known| known.tag == client.tag);
        let free = merged.clients.iter_mut().find(|place| place.tag == 0);
        if let (false, Some(free), Some(with)) = (known, free, translate(client.with)) {
            *free = Client { with, ..*client };
        }
    }
    merged
}

/// Numbers of IPv6 backends, which differ between versions.
struct BackendNumbers {
    from: MmapArray<Backend>,
    to: HashMap<Backend, u32>,
}

impl BackendNumbers {
    fn read(own: &Pins, other: &Pins) -> Result<BackendNumbers, Error> {
        let backends = |pins| mapped::<Backend>(pins, BACKENDS, BACKENDS_CAPACITY);
        let (from, to) = (backends(other)?, backends(own)?);
        let numbers = (0..BACKENDS_CAPACITY as u32).filter_map(|number| Some((to.get(number)?, number)));
        let to = numbers.filter(|(backend, _)| *backend != Backend::default()).collect();
        Ok(BackendNumbers { from, to })
    }

    /// Returns the member in this version; `None` for a backend that this version does not have. An IPv4 member has no
    /// number: these fields hold its port and its address instead of the number and the hash.
    fn translate(&self, member: Member) -> Option<Member> {
        match self.from.get(member.at) {
            Some(backend) if !backend.ip.is_v4() && backend.mark.to_ne_bytes() == member.mark => {
                let number = self.to.get(&backend)?;
                Some(Member { at: *number, ..member })
            }
            _ => Some(member),
        }
    }
}

fn mapped<V: bytemuck::Pod>(pins: &Pins, name: &'static str, len: usize) -> Result<MmapArray<V>, Error> {
    MmapArray::new(pins.open_data(name)?, len)
        .map_err(|error| failed(format!("map {name} into memory"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_both_blocks_are_kept() {
        let client = |tag| Client { tag, seen: tag, with: Member::v4([10, 1, 1, tag as u8], 80) };
        let block = |tags: [u32; 4]| AffinityBlock {
            clients: tags.map(|tag| if tag == 0 { Client::default() } else { client(tag) }),
        };
        let merged = merge(block([1, 0, 3, 0]), block([3, 5, 7, 9]), Some);
        assert_eq!(merged, block([1, 5, 3, 7]));
        let merged =
            merge(block([0; 4]), block([1, 2, 0, 0]), |member| (member.mark[3] != 1).then_some(member));
        assert_eq!(merged, block([2, 0, 0, 0]));
    }
}
