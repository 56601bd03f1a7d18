//! The processes of sandboxes: starting them, finding them again, ending them.
//!
//! This process is the reaper of all that descends from it, so whatever a sandbox starts stays its
//! descendant however it daemonises. A signal goes only to a descendant, through a pidfd, after the
//! process behind the number was checked to be still the one that was meant.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use tokio::process::{Child, Command};

use super::lock;

/// The variable that every process of a sandbox inherits.
pub(super) const MARKER: &str = "LOCAL_DAYTONA_SANDBOX";

/// One process: the start time tells it from a later one with its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) pid: i32,
    started: u64,
    pub(super) parent: i32,
    pub(super) group: i32,
    zombie: bool,
}

#[derive(Debug)]
pub(super) struct Processes {
    /// Tells this service's markers from those of another one that it may itself run in.
    nonce: String,
    /// Children that someone waits for; any other dead child is an orphan that only we can reap.
    awaited: Mutex<HashSet<i32>>,
    /// Directories of the sandboxes: where a process that dropped its environment is found by.
    homes: Mutex<BTreeMap<String, PathBuf>>,
}

impl Processes {
    pub(super) fn new() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self { nonce: uuid::Uuid::new_v4().to_string(), awaited: Mutex::default(), homes: Mutex::default() })
    }

    pub(super) fn add_home(&self, sandbox: &str, dir: &Path) {
        lock(&self.homes).insert(sandbox.to_owned(), dir.to_owned());
    }

    pub(super) fn remove_home(&self, sandbox: &str) {
        lock(&self.homes).remove(sandbox);
    }

    pub(super) fn marker(&self, sandbox: &str) -> String {
        format!("{}.{sandbox}", self.nonce)
    }

    /// Starts a child that is waited for; [`Processes::ended`] must follow once it was.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<(Child, Process)> {
        // Held over the start: an orphan hunt must not see the child before it is noted.
        let mut awaited = lock(&self.awaited);
        let child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        awaited.insert(pid);
        let process = read_stat(pid).ok_or_else(|| io::Error::other("the child is not in /proc"))?;
        Ok((child, process))
    }

    pub(super) fn ended(&self, process: &Process) {
        lock(&self.awaited).remove(&process.pid);
    }

    /// Reaps dead orphans; without it they would pile up here as zombies.
    pub(super) fn reap(&self) {
        let own = own_pid();
        let awaited = lock(&self.awaited);
        for orphan in all().iter().filter(|process| process.zombie && process.parent == own) {
            if !awaited.contains(&orphan.pid) {
                let _ = rustix::process::waitpid(Pid::from_raw(orphan.pid), WaitOptions::NOHANG);
            }
        }
    }

    /// Every live process of every sandbox.
    pub(super) fn by_sandbox(&self) -> BTreeMap<String, Vec<Process>> {
        let homes = lock(&self.homes).clone();
        let mut found: BTreeMap<String, Vec<Process>> = BTreeMap::new();
        let mut owners: BTreeMap<i32, String> = BTreeMap::new();
        // Parents come before their children, so a child can take its owner from its parent.
        for process in descendants(own_pid()) {
            let owner = self
                .marked(process.pid)
                .or_else(|| owners.get(&process.parent).cloned())
                .or_else(|| housed(process.pid, &homes));
            if let Some(owner) = owner {
                owners.insert(process.pid, owner.clone());
                if !process.zombie {
                    found.entry(owner).or_default().push(process);
                }
            }
        }
        found
    }

    /// Kills whatever belongs to `sandbox`, again and again until nothing is left.
    pub(super) async fn kill_all(&self, sandbox: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.by_sandbox().remove(sandbox).unwrap_or_default();
            if left.is_empty() || Instant::now() > deadline {
                break;
            }
            for process in &left {
                signal(process, Signal::KILL);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.reap();
    }

    fn marked(&self, pid: i32) -> Option<String> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let prefix = format!("{MARKER}={}.", self.nonce);
        environment
            .split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(prefix.as_bytes()).map(|id| String::from_utf8_lossy(id).into_owned()))
    }
}

/// Kills all that descends from this process: it started nothing but sandboxes' processes.
pub(super) async fn kill_everything() {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        let left: Vec<_> = descendants(own_pid()).into_iter().filter(|process| !process.zombie).collect();
        if left.is_empty() {
            return;
        }
        for process in &left {
            signal(process, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Signals `process` if it is still the same one and a descendant of ours.
pub(super) fn signal(process: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid).filter(|_| process.pid > 1) else {
        return false;
    };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // The handle is fixed to whatever had the number when it was opened; is that still ours?
    is_alive(process) && descends(process.pid) && rustix::process::pidfd_send_signal(handle, signal).is_ok()
}

pub(super) fn is_alive(process: &Process) -> bool {
    read_stat(process.pid).is_some_and(|now| now.started == process.started && !now.zombie)
}

/// The process with this number, if it descends from ours.
pub(super) fn descendant(pid: i32) -> Option<Process> {
    read_stat(pid).filter(|process| descends(process.pid))
}

/// The live members of a process group and all that descends from its leader.
pub(super) fn group_and_descendants(leader: i32) -> Vec<Process> {
    let below: HashSet<i32> = descendants(leader).iter().map(|process| process.pid).collect();
    let mut all = descendants(own_pid());
    all.retain(|process| !process.zombie && (process.group == leader || below.contains(&process.pid)));
    all
}

/// The live members of a process group.
pub(super) fn descendants_in_group(leader: i32) -> Vec<Process> {
    let mut all = descendants(own_pid());
    all.retain(|process| !process.zombie && process.group == leader);
    all
}

/// All that descends from `root`, parents before children.
pub(super) fn descendants(root: i32) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid);
            found.push(child);
        }
    }
    found
}

fn descends(pid: i32) -> bool {
    let own = own_pid();
    let mut current = pid;
    // Bounded: the chain may change while it is read.
    for _ in 0..1000 {
        match read_stat(current) {
            Some(process) if process.parent == own => return true,
            Some(process) if process.parent > 1 => current = process.parent,
            _ => return false,
        }
    }
    false
}

fn housed(pid: i32, homes: &BTreeMap<String, PathBuf>) -> Option<String> {
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    homes.iter().find(|(_, home)| cwd.starts_with(home)).map(|(id, _)| id.clone())
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(read_stat).collect()
}

fn read_stat(pid: i32) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&stat))
}

/// The name in the middle may hold anything, so fields are counted from its closing bracket.
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    Some(Process {
        pid,
        started: fields.get(19)?.parse().ok()?,
        parent: number(1)?,
        group: number(2)?,
        zombie: matches!(fields.first(), Some(&("Z" | "X"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse() {
        let stat = "7 (a) b) S 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let process = parse_stat(7, stat).unwrap();
        assert_eq!((process.parent, process.group, process.started), (1, 2, 4242));
        assert!(!process.zombie);
    }

    #[test]
    fn nothing_is_signalled_that_does_not_descend_from_us() {
        let parent = read_stat(std::os::unix::process::parent_id().cast_signed()).unwrap();
        assert!(!signal(&parent, Signal::WINCH));
        assert!(!signal(&Process { pid: 1, ..parent }, Signal::WINCH));
    }
}
