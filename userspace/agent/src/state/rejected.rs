use serde::Serialize;

/// An invalid object in the store. The last valid version stays in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Key in the store.
    pub key: String,
    /// Validation error.
    pub why: String,
}

impl Rejected {
    /// Maximum number of objects listed by [`lines`](Self::lines).
    const LISTED: usize = 5;

    /// Formats the objects for operators: one line for each of the first five, and one with the number of the others.
    pub fn lines(all: &[Rejected]) -> Vec<String> {
        let listed = all.iter().take(Self::LISTED);
        let mut lines: Vec<String> =
            listed.map(|Rejected { key, why }| format!("invalid object {key}: {why}")).collect();
        if all.len() > Self::LISTED {
            lines.push(format!("{} more invalid objects; see /inspect/driver", all.len() - Self::LISTED));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_first_and_counts_the_others() {
        let all: Vec<_> =
            (0..7).map(|n| Rejected { key: format!("/k/{n}"), why: "no JSON".into() }).collect();
        assert_eq!(Rejected::lines(&all[..1]), ["invalid object /k/0: no JSON"]);
        let lines = Rejected::lines(&all);
        assert_eq!((lines.len(), lines[5].as_str()), (6, "2 more invalid objects; see /inspect/driver"));
    }
}
