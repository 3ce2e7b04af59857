//! Nothing is answered from memory that may be old.
//!
//! A leader that hung, or that is cut off from the store, may have been replaced without knowing it. So before it
//! answers from its view, the store tells it that it still has its lock: then nobody else has written, and what it
//! holds is all that was ever acknowledged. One question serves all requests that wait when it is sent.

use std::time::Duration;

use contiv_store::election::ReadIndex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::problem::Problem;
use crate::problem::one_line;

type Asked = oneshot::Sender<Result<(), Problem>>;

/// Where requests ask.
#[derive(Clone)]
pub struct Assurance(mpsc::Sender<Asked>);

const QUEUE: usize = 1024;
/// The store has so long to answer.
const LIMIT: Duration = Duration::from_secs(2);

impl Assurance {
    /// The second part asks the store, as long as it is polled.
    pub fn new(proof: ReadIndex) -> (Assurance, impl Future<Output = ()> + Send) {
        let (sender, mut asked) = mpsc::channel::<Asked>(QUEUE);
        let answering = async move {
            let mut round = Vec::new();
            while asked.recv_many(&mut round, QUEUE).await > 0 {
                let answer = ask(&proof).await;
                for asked in round.drain(..) {
                    // Whoever went away does not mind.
                    let _gone = asked.send(answer.clone());
                }
            }
        };
        (Assurance(sender), answering)
    }

    /// That this netmaster led when it was asked, or later.
    pub async fn leads(&self) -> Result<(), Problem> {
        let (asked, answer) = oneshot::channel();
        self.0.send(asked).await.map_err(|_| Problem::deposed())?;
        answer.await.map_err(|_| Problem::deposed())?
    }
}

async fn ask(proof: &ReadIndex) -> Result<(), Problem> {
    match timeout(LIMIT, proof.confirm()).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(Problem::deposed()),
        Ok(Err(error)) => Err(Problem::unavailable(format!("store: {}", one_line(&error)))),
        Err(_) => Err(Problem::unavailable(format!("store: no answer within {LIMIT:?}; try again"))),
    }
}
