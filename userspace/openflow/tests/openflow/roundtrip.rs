//! What is encoded decodes to the same; garbage decodes to an error.

use openflow_rs::Message;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::arbitrary;

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_message_decodes_to_itself(message in arbitrary::message()) {
        let bytes = message.to_bytes().unwrap();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn garbage_never_panics(kind in 0u8..32, body in vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![4, kind];
        bytes.extend((body.len() as u16 + 8).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        if let Ok(message) = Message::decode(&bytes) {
            let _text = format!("{message:?}");
        }
    }

    /// Truth with a few bytes changed or cut off reaches deeper than noise.
    #[test]
    fn damage_never_panics(
        message in arbitrary::message(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = message.to_bytes().unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len().min(cut.index(bytes.len()) + 8));
        if let Ok(message) = Message::decode(&bytes) {
            // Whatever was understood can be said and sent again.
            let _text = format!("{message:?}");
            let _bytes = message.to_bytes();
        }
    }
}
