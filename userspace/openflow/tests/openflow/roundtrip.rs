//! Round trips of the codec, and decoding of invalid input.

use openflow_rs::Message;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::arbitrary;

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_round_trip(message in arbitrary::message()) {
        let bytes = message.to_bytes().unwrap();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    #[test]
    fn decoding_random_bytes_does_not_panic(kind in 0u8..32, body in vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![4, kind];
        bytes.extend((body.len() as u16 + 8).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        if let Ok(message) = Message::decode(&bytes) {
            let _text = format!("{message:?}");
        }
    }

    /// Corrupted valid messages reach deeper into the decoders than random bytes.
    #[test]
    fn decoding_corrupted_messages_does_not_panic(
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
            // Decoded messages can be formatted and encoded.
            let _text = format!("{message:?}");
            let _bytes = message.to_bytes();
        }
    }
}
