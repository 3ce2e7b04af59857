//! Test runs of XDP programs.

/// `struct xdp_md` for a test run with a frame of this length that arrives on the interface: `data`, `data_end`,
/// `data_meta`, `ingress_ifindex`, `rx_queue_index`, `egress_ifindex`.
pub fn xdp_context(frame_len: usize, ifindex: u32) -> Vec<u8> {
    let words = [0, frame_len as u32, 0, ifindex, 0, 0];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
