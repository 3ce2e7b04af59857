//! Sizes of the values that a transaction stages.

use std::collections::HashMap;
use std::io;

use serde::Serialize;

/// Bytes of the staged values as JSON, by key. A value that is edited counts as it was before.
#[derive(Default)]
pub(super) struct ValueSizes {
    sizes: HashMap<String, usize>,
    sum: usize,
}

impl ValueSizes {
    /// Notes the value of the key `path`; none if it is deleted.
    pub(super) fn set(&mut self, path: String, value: Option<&impl Serialize>) {
        let size = value.map_or(0, json_size);
        let before = match size {
            0 => self.sizes.remove(&path),
            _ => self.sizes.insert(path, size),
        };
        self.sum = self.sum + size - before.unwrap_or_default();
    }

    /// Bytes of all values.
    pub(super) fn sum(&self) -> usize {
        self.sum
    }
}

/// Bytes of the value as JSON; 0 if it cannot be encoded, which the end of the transaction reports.
fn json_size(value: &impl Serialize) -> usize {
    let mut counter = ByteCounter(0);
    serde_json::to_writer(&mut counter, value).map_or(0, |()| counter.0)
}

struct ByteCounter(usize);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::node;

    use super::*;

    #[test]
    fn a_value_counts_once() {
        let mut sizes = ValueSizes::default();
        let value =
            |host: &str| node::AcceptedStore { host: host.to_owned(), ..node::AcceptedStore::default() };
        let size = |host: &str| serde_json::to_vec(&value(host)).unwrap().len();
        sizes.set("a".to_owned(), Some(&value("a")));
        sizes.set("b".to_owned(), Some(&value("bb")));
        assert_eq!(sizes.sum(), size("a") + size("bb"));
        sizes.set("a".to_owned(), Some(&value("a longer one")));
        assert_eq!(sizes.sum(), size("a longer one") + size("bb"));
        sizes.set("b".to_owned(), None::<&node::AcceptedStore>);
        sizes.set("c".to_owned(), None::<&node::AcceptedStore>);
        assert_eq!(sizes.sum(), size("a longer one"));
    }
}
