//! The controllers of a run: one, or two of which one leads. Whoever ends is followed by another, as a cluster does it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::sync::{mpsc, oneshot};

use super::world::{Between, Trouble, World, trouble};
use crate::proxy::{Kill, is_end_of};
use crate::supervise::{Supervised, log_tail};

/// So often the owner of a connection is looked for.
const READS: u32 = 10;

/// How often it is looked whether a controller has ended by itself.
const LOOK: Duration = Duration::from_millis(250);

/// After so long there is one controller more, or one less.
const PERIOD: Duration = Duration::from_secs(20);

/// With these words a controller ends that leads no more, and with this code.
const LOST: &str = "this controller ends, so that only one acts";
const LOST_CODE: i32 = 1;

/// To kill the controller whose end of a connection is at an address; `dead` is dropped when it is dead.
#[derive(Debug)]
pub struct Doomed {
    caller: SocketAddr,
    dead: oneshot::Sender<()>,
}

/// Orders to kill a controller.
pub type Orders = mpsc::Receiver<Doomed>;
/// Who gives them.
pub type Order = mpsc::Sender<Doomed>;

/// The controllers of a run.
pub struct Replicas<'a> {
    between: &'a Between,
    all: Vec<(Supervised, PathBuf)>,
    /// All logs, the oldest first.
    logs: Vec<PathBuf>,
    several: bool,
    /// When they were first; there are then two in every other period since, and one between.
    changing: Option<Instant>,
}

impl<'a> Replicas<'a> {
    /// Starts one controller, or two that elect a leader.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(between: &'a Between, several: bool) -> Result<Self, Trouble> {
        let mut replicas = Self { between, all: Vec::new(), logs: Vec::new(), several, changing: None };
        for _ in 0..if several { 2 } else { 1 } {
            replicas.add()?;
        }
        Ok(replicas)
    }

    /// Starts one controller that elects itself; from time to time there is another beside it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_changing(between: &'a Between) -> Result<Self, Trouble> {
        let changing = Some(Instant::now());
        let mut replicas = Self { between, all: Vec::new(), logs: Vec::new(), several: true, changing };
        replicas.add()?;
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
                    Some(doomed) => self.replace(doomed).await,
                    None => return "nobody can be told of a kill".to_owned(),
                },
                () = tokio::time::sleep(LOOK) => self.replace_ended().and(self.change().await),
            };
            if let Err(trouble) = step {
                return trouble;
            }
        }
    }

    /// Kills whoever has made the call. Both may: the one that leads, and the other that would like to.
    async fn replace(&mut self, Doomed { caller, dead }: Doomed) -> Result<(), Trouble> {
        let mut found = None;
        // The kernel's table is read in parts, and leaves something out when it changes meanwhile.
        for _ in 0..READS {
            found = self.all.iter().position(|(process, _)| is_end_of(caller, process.pid()));
            if found.is_some() || !self.several {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        let place = match found {
            _ if !self.several => 0,
            Some(place) => place,
            // It was killed otherwise meanwhile.
            None if self.changing.is_some() => return Ok(()),
            None => return Err(format!("no controller has the connection from {caller}")),
        };
        let (mut doomed, _) = self.all.remove(place);
        doomed.kill().await.map_err(trouble)?;
        drop(dead);
        self.add()
    }

    fn replace_ended(&mut self) -> Result<(), Trouble> {
        for place in (0..self.all.len()).rev() {
            let Some((process, log)) = self.all.get_mut(place) else { continue };
            let Some(status) = process.ended().map_err(trouble)? else { continue };
            let told = std::fs::read_to_string(&*log).unwrap_or_default();
            if !self.several || !has_lost(status.code(), &told) {
                return Err(format!("the controller ended by itself, {status}: {}", log_tail(log, 3)));
            }
            self.all.remove(place);
            self.add()?;
        }
        Ok(())
    }

    async fn change(&mut self) -> Result<(), Trouble> {
        let Some(since) = self.changing else { return Ok(()) };
        let wanted = how_many(since.elapsed());
        if self.all.len() < wanted {
            return self.add();
        }
        // The older one, which may be the one that leads.
        while self.all.len() > wanted {
            self.all.remove(0).0.kill().await.map_err(trouble)?;
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

fn how_many(since: Duration) -> usize {
    let periods = since.as_secs() / PERIOD.as_secs();
    if periods.is_multiple_of(2) { 1 } else { 2 }
}

/// Whether a controller has ended because it could no longer lead, as it should. The cluster starts it again.
fn has_lost(code: Option<i32>, log: &str) -> bool {
    code == Some(LOST_CODE) && log.contains(LOST) && !log.contains("panicked")
}

/// Takes the claim to lead away that a run has left, so that the next one in its world begins with making it.
///
/// # Errors
/// When it cannot be deleted.
pub async fn forget_claim(world: &World) -> Result<(), Trouble> {
    let claims = Api::<Lease>::namespaced(world.client.clone(), &world.home);
    let all = ListParams::default();
    claims.delete_collection(&DeleteParams::default(), &all).await.map(drop).map_err(trouble)
}

/// Has the controller killed that has made a call, and waits until it is dead.
#[must_use]
pub fn killer(orders: &Order) -> Kill {
    let orders = orders.clone();
    Box::new(move |caller| -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (dead, is_dead) = oneshot::channel();
            let _ = orders.send(Doomed { caller, dead }).await;
            // Its sender is dropped when the controller is dead.
            let _ = is_dead.await;
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_another_from_time_to_time() {
        let counts = [0, 19, 20, 39, 40, 60].map(|seconds| how_many(Duration::from_secs(seconds)));
        assert_eq!(counts, [1, 1, 2, 2, 1, 2]);
    }

    #[test]
    fn only_a_lost_lead_is_a_reason_to_end() {
        let lost = format!("daytona-controller: \"other\" leads now; {LOST}");
        assert!(has_lost(Some(1), &lost));
        for (code, log) in [
            (Some(1), "daytona-controller: cannot read the kubeconfig".to_owned()),
            (Some(0), lost.clone()),
            (Some(101), lost.clone()),
            (None, lost.clone()),
            (Some(1), format!("thread 'main' panicked\n{lost}")),
        ] {
            assert!(!has_lost(code, &log), "{code:?} {log}");
        }
    }
}
