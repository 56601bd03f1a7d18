//! The controllers of a run: one, or two of which one leads. Whoever ends is followed by another, as a cluster does it.

use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::world::{Between, Trouble, trouble};
use crate::proxy::Kill;
use crate::supervise::{Supervised, log_tail};

/// How often it is looked whether a controller has ended by itself.
const LOOK: Duration = Duration::from_millis(250);

/// What a controller logs when it leads.
const LEADS: &str = ": leading";

/// Orders to kill the controller that acts; the sender is dropped when it is dead.
pub type Orders = mpsc::Receiver<oneshot::Sender<()>>;
/// Who gives them.
pub type Order = mpsc::Sender<oneshot::Sender<()>>;

/// The controllers of a run.
pub struct Replicas<'a> {
    between: &'a Between,
    all: Vec<(Supervised, PathBuf)>,
    /// All logs, the oldest first.
    logs: Vec<PathBuf>,
    several: bool,
}

impl<'a> Replicas<'a> {
    /// Starts one controller, or two that elect a leader.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(between: &'a Between, several: bool) -> Result<Self, Trouble> {
        let mut replicas = Self { between, all: Vec::new(), logs: Vec::new(), several };
        for _ in 0..if several { 2 } else { 1 } {
            replicas.add()?;
        }
        Ok(replicas)
    }

    fn add(&mut self) -> Result<(), Trouble> {
        let log = self.between.log(self.logs.len());
        let process = self.between.controller(&log, self.several)?;
        self.logs.push(log.clone());
        self.all.push((process, log));
        Ok(())
    }

    /// Does as it is ordered, and replaces who is killed, or gives up its lead. Comes back only with trouble.
    ///
    /// # Errors
    /// When a controller ends by itself that should not, or cannot be started.
    pub async fn keep(&mut self, orders: &mut Orders) -> Trouble {
        loop {
            let step = tokio::select! {
                order = orders.recv() => match order {
                    Some(dead) => self.replace_leader(dead).await,
                    None => return "nobody can be told of a kill".to_owned(),
                },
                () = tokio::time::sleep(LOOK) => self.replace_ended(),
            };
            if let Err(trouble) = step {
                return trouble;
            }
        }
    }

    async fn replace_leader(&mut self, dead: oneshot::Sender<()>) -> Result<(), Trouble> {
        let leads =
            |(_, log): &(Supervised, PathBuf)| std::fs::read_to_string(log).is_ok_and(|text| text.contains(LEADS));
        let place = self.all.iter().position(leads).unwrap_or_default();
        let (mut leader, _) = self.all.remove(place);
        leader.kill().await.map_err(trouble)?;
        drop(dead);
        self.add()
    }

    fn replace_ended(&mut self) -> Result<(), Trouble> {
        for place in (0..self.all.len()).rev() {
            let Some((process, log)) = self.all.get_mut(place) else { continue };
            let Some(status) = process.ended().map_err(trouble)? else { continue };
            let lost = std::fs::read_to_string(&*log).unwrap_or_default();
            // One that cannot renew its claim ends, and is started again by the cluster.
            if !self.several || lost.contains("panicked") {
                return Err(format!("the controller ended by itself, {status}: {}", log_tail(log, 3)));
            }
            self.all.remove(place);
            self.add()?;
        }
        Ok(())
    }

    /// Kills all of them.
    ///
    /// # Errors
    /// When one is out of control.
    pub async fn end(&mut self) -> Result<(), Trouble> {
        for (mut process, _) in self.all.drain(..) {
            process.kill().await.map_err(trouble)?;
        }
        Ok(())
    }

    /// The end of each log.
    #[must_use]
    pub fn told(&self, lines: usize) -> Vec<String> {
        self.logs.iter().map(|log| log_tail(log, lines)).collect()
    }
}

/// Has the controller that acts killed, and waits until it is dead.
#[must_use]
pub fn killer(orders: &Order) -> Kill {
    let orders = orders.clone();
    Box::new(move || -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (dead, is_dead) = oneshot::channel();
            let _ = orders.send(dead).await;
            // Its sender is dropped when the controller is dead.
            let _ = is_dead.await;
        })
    })
}
