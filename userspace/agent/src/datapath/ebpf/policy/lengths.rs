//! The lengths of prefixes that the programs look for, as a search tree, and the way to a length in it. Pure.

use contiv_abi::policy::{Family, Tree};

/// Fills the family's part of a tree. `lengths` are sorted, without doubles, and fewer than 128.
pub(super) fn plant(tree: &mut Tree, family: Family, lengths: &[u8]) {
    if !lengths.is_empty() {
        tree.set(family, 0, 1);
    }
    let mut next = lengths.iter().copied();
    fill(tree, family, 1, lengths.len() as u8, &mut next);
}

/// In order, so that what is left of a slot is shorter than it, and what is right of it is longer.
fn fill(tree: &mut Tree, family: Family, slot: u8, count: u8, next: &mut impl Iterator<Item = u8>) {
    if slot > count {
        return;
    }
    fill(tree, family, slot * 2, count, next);
    if let Some(length) = next.next() {
        tree.set(family, slot, length);
    }
    fill(tree, family, slot * 2 + 1, count, next);
}

/// The shorter lengths at which a search for `length` has to be told to go on.
pub(super) fn signposts(tree: &Tree, family: Family, length: u8) -> impl Iterator<Item = u8> {
    let mut slot = tree.slot(family, 0);
    std::iter::from_fn(move || {
        while slot != 0 {
            let here = tree.slot(family, slot);
            if here == Tree::END || here == length {
                return None;
            }
            let on = here < length;
            slot = slot * 2 + u8::from(on);
            if on {
                return Some(here);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_found_from_the_root() {
        for (family, all) in
            [(Family::V4, (96..=128).collect::<Vec<u8>>()), (Family::V6, (2..=128).collect())]
        {
            for count in 0..=all.len() {
                let lengths = &all[..count];
                let mut tree = Tree::EMPTY;
                plant(&mut tree, family, lengths);
                for (index, length) in lengths.iter().enumerate() {
                    let shorter: Vec<u8> = signposts(&tree, family, *length).collect();
                    assert!(shorter.iter().all(|s| lengths[..index].contains(s)), "{shorter:?} for {length}");
                    assert!(shorter.len() <= lengths.len().ilog2() as usize);
                    // Down the tree as a search goes that finds all of them.
                    let (mut slot, mut steps) = (1, 0);
                    while tree.slot(family, slot) != *length {
                        slot = slot * 2 + u8::from(shorter.contains(&tree.slot(family, slot)));
                        steps += 1;
                        assert!(steps < 7);
                    }
                }
            }
        }
    }
}
