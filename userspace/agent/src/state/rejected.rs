use serde::Serialize;

/// An object of the store that is not understood. The last good version stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Where it stands.
    pub key: String,
    /// What is wrong with it.
    pub why: String,
}

impl Rejected {
    /// So many are named to people; the others are counted.
    const NAMED: usize = 5;

    /// For operators: a line for each of the first, and one for the others.
    pub fn lines(all: &[Rejected]) -> Vec<String> {
        let named = all.iter().take(Self::NAMED);
        let mut lines: Vec<String> =
            named.map(|Rejected { key, why }| format!("not understood: {key}: {why}")).collect();
        if all.len() > Self::NAMED {
            lines.push(format!("not understood: {} more, see /inspect/driver", all.len() - Self::NAMED));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_named() {
        let all: Vec<_> =
            (0..7).map(|n| Rejected { key: format!("/k/{n}"), why: "no JSON".into() }).collect();
        assert_eq!(Rejected::lines(&all[..1]), ["not understood: /k/0: no JSON"]);
        let lines = Rejected::lines(&all);
        assert_eq!((lines.len(), lines[5].as_str()), (6, "not understood: 2 more, see /inspect/driver"));
    }
}
