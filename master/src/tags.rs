//! VLAN ids and VNIs of networks, and the pools they are allocated from (INVENTORY 2.5).

mod range;
mod vlan;
mod vxlan;

pub use range::Range;
pub use vlan::Vlans;
pub use vxlan::Vxlans;

/// Groups ascending numbers into ranges of consecutive numbers: first and last, both included.
pub fn ranges<N>(numbers: impl Iterator<Item = N>) -> impl Iterator<Item = (N, N)>
where
    N: Copy + PartialEq + std::ops::Add<Output = N> + From<u8>,
{
    let mut numbers = numbers.peekable();
    std::iter::from_fn(move || {
        let first = numbers.next()?;
        let mut last = first;
        while let Some(next) = numbers.next_if(|n| *n == last + N::from(1)) {
            last = next;
        }
        Some((first, last))
    })
}

/// Formats numbers for operators: `1-8, 500`.
pub fn list(numbers: impl Iterator<Item = usize>) -> String {
    let range = |(a, b)| if a == b { format!("{a}") } else { format!("{a}-{b}") };
    ranges(numbers).map(range).collect::<Vec<_>>().join(", ")
}
