use proptest::prelude::*;

use super::*;

/// The bitmap of a pool of one address in a /9.
fn one_address() -> BitWindow {
    BitWindow::with_clear(1 << 23, 5_000_000..5_000_001)
}

fn json(window: &BitWindow) -> String {
    serde_json::to_string(window).unwrap()
}

fn read_json(text: &str) -> Result<BitWindow, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn memory_and_json_follow_what_is_clear() {
    let mut pool = one_address();
    assert_eq!((pool.kept(), json(&pool).as_str()), (BLOCK, r#"{"len":8388608,"clear":"5000000"}"#));
    pool.insert_range(5_000_000..5_000_001);
    pool.shrink();
    assert_eq!((pool.kept(), json(&pool).as_str()), (0, r#"{"len":8388608,"clear":""}"#));
    // A large pool of which every second address is in use.
    let mut large = BitWindow::with_clear(1 << 23, 1 << 20..(1 << 20) + 100_000);
    for n in (0..100_000).step_by(2) {
        large.insert_range((1 << 20) + n..(1 << 20) + n + 1);
    }
    let text = json(&large);
    assert!(text.starts_with(r#"{"len":8388608,"first":1048576,"bits":""#) && text.len() < 17_000, "{text}");
    assert_eq!(read_json(&text), Ok(large));
}

#[test]
fn the_window_shrinks_to_its_blocks() {
    let mut window = BitWindow::from(Bitset::new(10 * BLOCK + 100));
    window.insert_range(0..3 * BLOCK + 1);
    window.insert_range(3 * BLOCK + 2..10 * BLOCK + 99);
    let before = window.clone();
    window.shrink();
    assert_eq!((window.kept(), &window), (7 * BLOCK + 100, &before));
    window.insert_range(10 * BLOCK + 99..10 * BLOCK + 100);
    window.shrink();
    assert_eq!((window.kept(), window.count_clear()), (BLOCK, 1));
    assert!(window.contains(0) && !window.contains(3 * BLOCK + 1) && !window.contains(10 * BLOCK + 100));
}

#[test]
fn invalid_values_are_refused() {
    for (value, error) in [
        (r#"{"len": 16777217, "clear": ""}"#, "bitmap of 16777217 bits"),
        (r#"{"len": 64}"#, "expected either clear or bits"),
        (r#"{"len": 4, "clear": "", "bits": "AAAAAAAAAAQAAAAAAAAACQ=="}"#, "expected either clear or bits"),
        (r#"{"len": 64, "clear": "5-64"}"#, "clear bits"),
        (r#"{"len": 64, "clear": "5-4"}"#, "clear bits"),
        (r#"{"len": 64, "clear": "x"}"#, "clear bits"),
        (r#"{"len": 64, "bits": "AAAAAAAAAAQAAAAAAAAACQ=="}"#, "4 bits from 0"),
        (r#"{"len": 4, "first": 1, "bits": "AAAAAAAAAAQAAAAAAAAACQ=="}"#, "4 bits from 1"),
        (r#"{"clear": ""}"#, "len"),
    ] {
        let refused = read_json(value).unwrap_err();
        assert!(refused.contains(error), "{value}: {refused}");
    }
    let read = read_json(r#"{"len": 4, "bits": "AAAAAAAAAAQAAAAAAAAACQ=="}"#).unwrap();
    assert_eq!(read.clear_ranges(0..4).flatten().collect::<Vec<_>>(), [1, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The operations are those of a bitmap without a window, bit by bit.
    #[test]
    fn windows_do_not_show(
        len in 1usize..40_000,
        clear in (0usize..40_000, 0usize..5_000),
        changes in prop::collection::vec((0u8..4, 0usize..41_000, 0usize..6_000), 0..12),
    ) {
        let clear = clear.0..clear.0 + clear.1;
        let (mut window, mut bits) = (BitWindow::with_clear(len, clear.clone()), Bitset::new(len));
        (0..len).filter(|n| !clear.contains(n)).for_each(|n| { bits.insert(n); });
        for (change, start, more) in changes {
            let range = start..start + more;
            match change {
                0 => {
                    let expected = range.clone().filter(|n| bits.insert(*n)).count();
                    prop_assert_eq!(window.insert_range(range.clone()), expected);
                }
                1 => {
                    let expected = range.clone().filter(|n| bits.remove(*n)).count();
                    prop_assert_eq!(window.remove_range(range.clone()), expected);
                }
                2 => window.shrink(),
                _ => {
                    let (start, part) = (start / 64 * 64, bits.part((len - 1) / 128 * 64, more / 64 * 64));
                    let replaced = bits.clone().set_part(start, &part);
                    if replaced {
                        bits.set_part(start, &part);
                    }
                    prop_assert_eq!(window.set_part(start, &part), replaced);
                }
            }
            prop_assert_eq!(&window.clone().into_bitset(), &bits);
            prop_assert_eq!(window.count_clear(), len - bits.count());
            prop_assert_eq!(window.next_set(start), bits.next_set(start));
            prop_assert_eq!(window.next_clear(start), bits.next_clear(start));
            prop_assert_eq!(window.contains(start), bits.contains(start));
            prop_assert_eq!(window.part(start / 64 * 64, more), bits.part(start / 64 * 64, more));
            let whole = BitWindow::from(bits.clone());
            prop_assert_eq!(&window, &whole);
            let set: Vec<usize> = window.set_ranges(range.clone()).flatten().collect();
            prop_assert_eq!(set, range.clone().filter(|n| bits.contains(*n)).collect::<Vec<_>>());
            let clear: Vec<usize> = window.clear_ranges(range.clone()).flatten().collect();
            let expected = range.filter(|n| *n < len && !bits.contains(*n));
            prop_assert_eq!(clear, expected.collect::<Vec<_>>());
            prop_assert_eq!(json(&window), json(&whole));
            prop_assert_eq!(read_json(&json(&window)), Ok(window.clone()));
        }
    }
}
