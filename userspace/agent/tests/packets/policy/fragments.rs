//! Fragments: the later ones pass if the first one has passed.

use super::*;

const UDP: u8 = 17;

fn first(id: u16) -> Packet {
    to(SERVER).fragment(id, 0, true).udp(4000, 53).payload(&[0; 24])
}

fn later(id: u16) -> Packet {
    to(SERVER).protocol(UDP).fragment(id, 4, false).payload(b"the end")
}

#[test]
fn denied_fragments_take_no_room_from_others() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-fragments")?;
    rig.set(group(2, vec![rule("all", Direction::In, Action::Deny, 1)]))?;
    rig.send(&first(7))?.assert_dropped(DropReason::Policy);
    rig.send(&later(7))?.assert_dropped(DropReason::UnknownFragment);
    rig.set(group(2, vec![]))?;
    // By a new flow, and by a known one.
    for id in [7, 8] {
        passes(&rig.send(&first(id))?);
        passes(&rig.send(&later(id))?);
    }
    // By a denied one.
    rig.set(group(2, vec![rule("all", Direction::In, Action::Deny, 1)]))?;
    rig.send(&first(9))?.assert_dropped(DropReason::Policy);
    rig.send(&later(9))?.assert_dropped(DropReason::UnknownFragment);
    Ok(())
}
