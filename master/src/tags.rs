//! The numbers that networks are told apart by on the wire, and the pools that they come from (INVENTORY 2.5).

mod range;
mod vlan;
mod vxlan;

pub use range::Range;
pub use vlan::Vlans;
pub use vxlan::Vxlans;

/// Ascending numbers as runs of neighbours, first and last.
pub fn runs<N>(numbers: impl Iterator<Item = N>) -> impl Iterator<Item = (N, N)>
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

/// Numbers as operators read them: `1-8, 500`.
pub fn list(numbers: impl Iterator<Item = usize>) -> String {
    let run = |(a, b)| if a == b { format!("{a}") } else { format!("{a}-{b}") };
    runs(numbers).map(run).collect::<Vec<_>>().join(", ")
}
