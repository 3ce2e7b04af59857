//! Keeps the fabric what the store says.

use std::sync::Arc;
use std::time::Duration;

use contiv_model::api::AppProfile;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::Gateway;
use crate::cache::{Draft, Pending, Shared};
use crate::commit::Queue;
use crate::domain::fabric::{Spec, is_on, is_on_in};
use crate::problem::{Answer, Problem};

/// A plan that can be tried before it is carried out.
pub type Plan = Arc<dyn Fn(&mut Draft<'_>) -> Answer + Send + Sync>;

pub struct Fabric {
    gateway: Gateway,
    /// Who tells the gateway something.
    turn: Mutex<()>,
}

/// Notes are looked for so often.
const LOOK: Duration = Duration::from_secs(1);
/// A gateway that does not answer is asked less and less often, up to this.
const REST: Duration = Duration::from_secs(60);

impl Fabric {
    pub fn new(gateway: Gateway) -> Fabric {
        Fabric { gateway, turn: Mutex::new(()) }
    }

    /// Carries out `plan`, which makes, changes or deletes the application profile `key`.
    pub async fn change(&self, world: &Shared, queue: &Queue, key: &str, plan: Plan) -> Answer {
        if !is_on_in(&world.read()) {
            return queue.submit(Box::new(move |draft| plan(draft)), true).await;
        }
        let _turn = self.turn.lock().await;
        let (known, wanted) = {
            let world = world.read();
            let mut draft = Draft::new(&world);
            plan(&mut draft)?;
            (world.get::<AppProfile>(key).is_some(), wanted(key, &draft)?)
        };
        let note = key.to_owned();
        let noted = move |draft: &mut Draft<'_>| {
            draft.put(&note, Pending { id: note.clone() });
            Ok(vec![])
        };
        queue.submit(Box::new(noted), true).await?;
        match &wanted {
            Some(spec) => {
                if known {
                    self.gateway.clear(&Spec::named(key)).await?;
                }
                self.gateway.create(spec).await?;
            }
            None => self.gateway.delete(&Spec::named(key)).await?,
        }
        let key = key.to_owned();
        let told = move |draft: &mut Draft<'_>| {
            let answer = plan(draft)?;
            // What others have changed meanwhile, the gateway has still to hear.
            if self::wanted(&key, draft).ok().as_ref() == Some(&wanted) {
                forget(&key, draft);
            }
            Ok(answer)
        };
        queue.submit(Box::new(told), true).await
    }

    /// Tells the gateway what it may not know. Never ends.
    pub async fn keep(&self, world: &Shared, queue: &Queue) {
        let mut rest = LOOK;
        loop {
            sleep(rest).await;
            let pending: Vec<String> = world.read().table::<Pending>().keys().cloned().collect();
            let mut failed = false;
            for key in pending {
                if let Err(problem) = self.tell(world, queue, &key).await {
                    tracing::warn!(profile = key, %problem, "the ACI gateway does not know what the store says; trying again");
                    failed = true;
                }
            }
            rest = if failed { (rest * 2).min(REST) } else { LOOK };
        }
    }

    async fn tell(&self, world: &Shared, queue: &Queue, key: &str) -> Result<(), Problem> {
        let _turn = self.turn.lock().await;
        let wanted = {
            let world = world.read();
            if world.get::<Pending>(key).is_none() {
                return Ok(());
            }
            let draft = Draft::new(&world);
            is_on(&draft).then(|| wanted(key, &draft)).transpose()?
        };
        // A cluster that is at no fabric any more has nothing to tell.
        if let Some(wanted) = &wanted {
            self.gateway.clear(&Spec::named(key)).await?;
            if let Some(spec) = wanted {
                self.gateway.create(spec).await?;
            }
        }
        let (note, told) = (key.to_owned(), wanted);
        let heard = move |draft: &mut Draft<'_>| {
            // What has changed meanwhile is told in the next round.
            let now = is_on(draft).then(|| self::wanted(&note, draft)).transpose();
            if now.ok().as_ref() == Some(&told) {
                forget(&note, draft);
            }
            Ok(vec![])
        };
        queue.submit(Box::new(heard), true).await.map(drop)
    }
}

/// What the fabric is to have of the profile; none if there is none.
fn wanted(key: &str, draft: &Draft<'_>) -> Result<Option<Spec>, Problem> {
    draft.get::<AppProfile>(key).map(|profile| Spec::of(&profile, draft)).transpose()
}

fn forget(key: &str, draft: &mut Draft<'_>) {
    if draft.get::<Pending>(key).is_some() {
        draft.delete::<Pending>(key);
    }
}
