//! The oracle as a node: frames arrive as soon as they are sent.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use futures::executor::block_on;
use netplugin::datapath::{
    Datapath as _, Desired, FailedOp, ObjectId, Observed, Op,
    fake::{Delivery, Fake, Origin},
};

use super::{Damage, Harness};

pub(crate) struct FakeNode {
    fake: Fake,
    pods: BTreeSet<String>,
    arrivals: Vec<Delivery>,
}

impl Harness for FakeNode {
    const IS_ORACLE: bool = true;

    fn missing() -> Option<String> {
        None
    }

    fn start() -> Result<FakeNode> {
        Ok(FakeNode { fake: Fake::new(), pods: BTreeSet::new(), arrivals: vec![] })
    }

    fn plug(&mut self, port: &str) -> Result<()> {
        ensure!(self.pods.insert(port.to_owned()), "a pod is on {port} already");
        self.fake.switch().clear_faults();
        Ok(())
    }

    fn retain_orphans(&mut self, retain: bool) {
        self.fake.retain_orphans(retain);
    }

    fn observe(&mut self, desired: &Desired) -> Result<Observed> {
        Ok(block_on(self.fake.observe(desired))?)
    }

    fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>> {
        for op in ops {
            if let Op::Set(netplugin::datapath::Object::Local(local)) = op
                && !self.pods.contains(&local.port)
            {
                self.fake.switch().remove_interface(&local.port);
            }
        }
        Ok(block_on(self.fake.apply(ops))?)
    }

    fn writes(&self) -> u64 {
        self.fake.writes()
    }

    fn restart(&mut self) -> Result<()> {
        self.fake = Fake::reopen(self.fake.switch());
        Ok(())
    }

    fn cleanup(&mut self) -> Result<()> {
        Ok(block_on(self.fake.cleanup())?)
    }

    fn emit(&mut self, from: &Origin, frame: &[u8]) -> Result<()> {
        self.arrivals.extend(self.fake.switch().deliver(frame, from));
        Ok(())
    }

    fn arrivals(&mut self) -> Result<Vec<Delivery>> {
        Ok(std::mem::take(&mut self.arrivals))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn forget(&self) -> Result<()> {
        self.fake.switch().forget_connections();
        Ok(())
    }

    fn damage(&mut self, damage: Damage) -> Result<()> {
        let switch = self.fake.switch();
        match damage {
            Damage::Forwarding => {
                for (id, _) in switch.objects().iter() {
                    if matches!(id, ObjectId::Local(_) | ObjectId::Remote(_)) {
                        switch.drop_object(id);
                    }
                }
            }
            Damage::Port(port) => {
                let objects = switch.objects();
                let id = objects.iter().find_map(|(id, object)| match object {
                    netplugin::datapath::Object::Local(local) if local.port == port => Some(id),
                    _ => None,
                });
                switch.drop_object(id.with_context(|| format!("find the endpoint on {port}"))?);
            }
            Damage::ForeignItem => switch.add_foreign_items(1),
        }
        Ok(())
    }
}
