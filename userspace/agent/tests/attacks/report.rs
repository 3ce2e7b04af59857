//! The result of a run.

use std::{collections::BTreeMap, env, fmt::Write as _, fs};

use anyhow::{Context as _, Result, bail};

use crate::attack::{Kind, Try};

const LIST: &str = "CONTIV_ATTACKS_LIST";
/// Selects attacks by a part of their name, or by defect.
pub(crate) const SELECTION: &str = "CONTIV_ATTACKS";

/// Attacks on eBPF nodes that succeed today. A run fails when one of them no longer does.
const OPEN: [&str; 0] = [];

pub(crate) struct Report {
    datapath: &'static str,
    attacks: usize,
    tries: usize,
    controls: usize,
    successes: Vec<Success>,
    failed_controls: Vec<Success>,
}

/// A try with another result than the expected one.
#[derive(Clone, Debug)]
pub(crate) struct Success {
    pub(crate) attack: String,
    pub(crate) defect: &'static str,
    pub(crate) of: Try,
    pub(crate) kind: Kind,
    pub(crate) harm: String,
}

impl Success {
    fn describe(&self) -> String {
        let Success { attack, of, kind, harm, .. } = self;
        let Try { place, rules, attacker, family } = of;
        format!("{attack}: {attacker:?} {place:?} against {rules:?}, {family:?}, {kind:?}: {harm}")
    }
}

impl Report {
    pub(crate) fn new(datapath: &'static str, attacks: usize) -> Report {
        Report { datapath, attacks, tries: 0, controls: 0, successes: vec![], failed_controls: vec![] }
    }

    pub(crate) fn tried(&mut self) {
        self.tries += 1;
    }

    pub(crate) fn controlled(&mut self) {
        self.controls += 1;
    }

    pub(crate) fn succeeded(&mut self, success: Success) {
        self.successes.push(success);
    }

    pub(crate) fn failed(&mut self, control: Success) {
        self.failed_controls.push(control);
    }

    /// Prints the result.
    ///
    /// # Errors
    ///
    /// If an attack has succeeded or a control has failed.
    pub(crate) fn finish(mut self) -> Result<()> {
        let is_open = |success: &Success| OPEN.contains(&success.attack.as_str());
        let (open, successes) = std::mem::take(&mut self.successes).into_iter().partition(is_open);
        let open: Vec<Success> = open;
        self.successes = successes;
        print!("{}", table("open", &open));
        let is_whole = self.datapath == "ebpf" && env::var_os(SELECTION).is_none();
        let closed = OPEN.iter().find(|name| !open.iter().any(|success| success.attack == **name));
        if let Some(name) = closed.filter(|_| is_whole) {
            bail!("{name:?} no longer succeeds: remove it from the open attacks");
        }
        let Report { datapath, attacks, tries, controls, .. } = self;
        let (succeeded, failed) = (self.successes.len(), self.failed_controls.len());
        println!(
            "\n{datapath}: {attacks} attacks, {tries} tries, {succeeded} succeeded; {controls} controls, {failed} failed"
        );
        print!("{}", table("attacks that succeed", &self.successes));
        print!("{}", table("controls that fail", &self.failed_controls));
        if let Some(path) = env::var_os(LIST) {
            let lines = |kind: &str, list: &[Success]| -> String {
                list.iter()
                    .map(|one| format!("{datapath} {kind} {} {}\n", one.defect, one.describe()))
                    .collect()
            };
            let text = lines("attack", &self.successes) + &lines("control", &self.failed_controls);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        if succeeded + failed > 0 {
            bail!(
                "{succeeded} of {tries} attacks on {datapath} succeed, {failed} of {controls} controls fail"
            );
        }
        Ok(())
    }
}

/// One line for each attack, with the number of its tries and one of them.
fn table(title: &str, successes: &[Success]) -> String {
    let mut text = String::new();
    let mut by_defect = BTreeMap::<_, BTreeMap<_, Vec<&Success>>>::new();
    for success in successes {
        by_defect.entry(success.defect).or_default().entry(&success.attack).or_default().push(success);
    }
    for (defect, attacks) in by_defect {
        let tries: usize = attacks.values().map(Vec::len).sum();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{title}, {defect}: {} attacks, {tries} tries", attacks.len());
        for tries in attacks.values() {
            let _ = writeln!(text, "  {:4} {}", tries.len(), tries[0].describe());
        }
    }
    text
}
