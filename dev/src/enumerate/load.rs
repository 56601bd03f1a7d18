//! What a soak's users do: commands come to several leases, and some of them, and leases, are ended in the middle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use serde_json::json;

use super::follow::Kind;
use super::hands::{Ends, Hands, LIMIT};
use super::soak::Random;
use super::world::Trouble;

/// Commands that may be under way; with more, no other is made.
const UNDER_WAY: usize = 12;
/// Time between two things that are done.
const PACE: Duration = Duration::from_millis(300);
/// How long a lease is suspended.
const SUSPENDED: Duration = Duration::from_secs(4);
/// Leases, and whether they have a session.
const LEASES: [(&str, bool); 4] = [("a", true), ("b", false), ("c", true), ("d", false)];

/// How often something was done.
#[derive(Debug, Default)]
pub(super) struct Done {
    made: u32,
    cancelled: u32,
    deleted: u32,
    leases_suspended: u32,
    leases_deleted: u32,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { made, cancelled, deleted, leases_suspended, leases_deleted } = self;
        write!(
            f,
            "{made} commands, {cancelled} cancelled, {deleted} deleted; leases {leases_suspended} times suspended, "
        )?;
        write!(f, "{leases_deleted} times deleted")
    }
}

/// How a lease stands, as far as was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Up,
    Suspended(Instant),
    /// It is made anew when it is gone.
    Going,
}

/// The users of a soak.
pub(super) struct Load<'a> {
    hands: &'a Hands<'a>,
    random: Random,
    leases: BTreeMap<&'static str, Stands>,
    /// By the name of a command, its lease.
    commands: BTreeMap<String, &'static str>,
    /// Commands that were deleted.
    going: BTreeSet<String>,
    pub(super) done: Done,
}

impl<'a> Load<'a> {
    pub(super) fn new(hands: &'a Hands<'a>, seed: u64) -> Self {
        let random = Random::new(seed);
        let (leases, commands) = (BTreeMap::new(), BTreeMap::new());
        Self { hands, random, leases, commands, going: BTreeSet::new(), done: Done::default() }
    }

    /// Goes on for so long.
    pub(super) async fn go(&mut self, lasts: Duration) -> Result<(), Trouble> {
        let start = Instant::now();
        for (name, _) in LEASES {
            self.lease(name).await?;
        }
        while start.elapsed() < lasts {
            tokio::time::sleep(PACE).await;
            self.bring_back(SUSPENDED).await?;
            match self.random.below(40) {
                0 => self.suspend().await?,
                1 => self.delete_lease().await?,
                2 | 3 => self.cancel().await?,
                4 | 5 => self.delete().await?,
                _ if self.hands.under_way().len() < UNDER_WAY => self.command().await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Has all leases there, and all commands come to their end.
    pub(super) async fn settle(&mut self) -> Result<(), Trouble> {
        let start = Instant::now();
        while self.leases.values().any(|stands| *stands != Stands::Up) {
            if start.elapsed() > LIMIT {
                return Err(format!("waited {} s in vain for all leases: {:?}", LIMIT.as_secs(), self.leases));
            }
            tokio::time::sleep(PACE).await;
            self.bring_back(Duration::ZERO).await?;
        }
        let hands = self.hands;
        let all = async || hands.under_way().is_empty();
        hands.until("all commands to be Finished", all).await.map_err(|late| format!("{late}: {:?}", hands.under_way()))
    }

    async fn lease(&mut self, name: &'static str) -> Result<(), Trouble> {
        let sessions = LEASES.iter().any(|(other, sessions)| *other == name && *sessions);
        let parallel = if sessions { 1 } else { 3 };
        self.hands.lease(name, json!({ "useSessions": sessions, "maxParallelCommands": parallel })).await?;
        self.leases.insert(name, Stands::Up);
        Ok(())
    }

    /// Resumes what has been suspended for so long, and makes anew what is gone.
    async fn bring_back(&mut self, after: Duration) -> Result<(), Trouble> {
        for (name, stands) in self.leases.clone() {
            let key = (Kind::Lease, name.to_owned());
            match stands {
                Stands::Suspended(since) if since.elapsed() >= after => {
                    self.hands.change(Kind::Lease, name, &json!({ "suspend": false })).await?;
                    self.leases.insert(name, Stands::Up);
                }
                Stands::Going if !self.hands.follow.state().objects.contains_key(&key) => self.lease(name).await?,
                _ => {}
            }
        }
        Ok(())
    }

    fn any_lease(&mut self) -> Option<&'static str> {
        let up: Vec<_> =
            self.leases.iter().filter(|(_, stands)| **stands == Stands::Up).map(|(name, _)| *name).collect();
        self.random.one_of(&up)
    }

    /// What has not ended in a lease may end with it now.
    fn excuse(&self, lease: &str) {
        for name in self.commands.iter().filter(|(_, own)| **own == lease).map(|(name, _)| name) {
            let state = self.hands.follow.state();
            let status = state.statuses.get(name).and_then(|status| status.get("state"));
            if status.is_none_or(|state| state != "Finished") {
                self.hands.need_not_run(name);
            }
        }
    }

    async fn suspend(&mut self) -> Result<(), Trouble> {
        let Some(lease) = self.any_lease() else { return Ok(()) };
        self.excuse(lease);
        self.hands.change(Kind::Lease, lease, &json!({ "suspend": true })).await?;
        self.leases.insert(lease, Stands::Suspended(Instant::now()));
        self.done.leases_suspended += 1;
        Ok(())
    }

    async fn delete_lease(&mut self) -> Result<(), Trouble> {
        let Some(lease) = self.any_lease() else { return Ok(()) };
        self.excuse(lease);
        self.hands.delete(Kind::Lease, lease).await?;
        self.leases.insert(lease, Stands::Going);
        self.done.leases_deleted += 1;
        Ok(())
    }

    /// One that has not ended, and is sure to be there.
    fn any_command(&mut self) -> Option<String> {
        let mut all = self.hands.under_way();
        all.retain(|name| !self.going.contains(name));
        let place = self.random.below(all.len() as u64);
        all.get(usize::try_from(place).unwrap_or_default()).cloned()
    }

    async fn cancel(&mut self) -> Result<(), Trouble> {
        let Some(name) = self.any_command() else { return Ok(()) };
        self.hands.need_not_run(&name);
        self.hands.change(Kind::Command, &name, &json!({ "cancel": true })).await?;
        self.done.cancelled += 1;
        Ok(())
    }

    async fn delete(&mut self) -> Result<(), Trouble> {
        let Some(name) = self.any_command() else { return Ok(()) };
        self.hands.need_not_run(&name);
        self.hands.delete(Kind::Command, &name).await?;
        self.going.insert(name);
        self.done.deleted += 1;
        Ok(())
    }

    /// Some are timed out.
    async fn command(&mut self) -> Result<(), Trouble> {
        let Some(lease) = self.any_lease() else { return Ok(()) };
        self.done.made += 1;
        let name = format!("c{}", self.done.made);
        self.commands.insert(name.clone(), lease);
        match self.random.below(8) {
            0 => self.hands.command(&name, lease, "echo out", Ends::Never, json!({ "timeoutSeconds": 3 })).await,
            1 => {
                let fields = json!({ "stdin": { "value": "input\n" }, "logs": { "tailBytes": 64 } });
                self.hands.command(&name, lease, "cat; seq 1 100", Ends::With(0), fields).await
            }
            2 | 3 => self.hands.command(&name, lease, "sleep 1", Ends::With(7), json!({})).await,
            code => {
                let code = i32::try_from(code % 3).unwrap_or_default();
                self.hands.command(&name, lease, "echo out; echo err >&2", Ends::With(code), json!({})).await
            }
        }
    }
}
