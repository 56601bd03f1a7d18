//! The ports on which a sandbox listens. Its network is this machine's, so only what its own processes have counts.

use std::collections::{BTreeSet, HashSet};
use std::fs;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use super::daemon::{Daemon, Here};
use super::problem::Problem;

/// Of the daemon itself.
const OWN: u16 = 2280;

/// Of these it can be asked whether they are in use.
const ASKABLE: std::ops::RangeInclusive<u16> = 3000..=9999;

pub(super) fn router() -> Router {
    Router::new().route("/port", get(list)).route("/port/{port}/in-use", get(in_use))
}

async fn list(Extension(daemon): Here) -> Json<Value> {
    let mut ports = listening(&daemon);
    ports.insert(OWN);
    Json(json!({ "ports": ports }))
}

async fn in_use(Extension(daemon): Here, Path((_, port)): Path<(String, String)>) -> Result<Json<Value>, Problem> {
    let port = port.parse().ok().filter(|port| ASKABLE.contains(port));
    let port = port.ok_or(Problem::Empty(StatusCode::BAD_REQUEST))?;
    Ok(Json(json!({ "isInUse": listening(&daemon).contains(&port) })))
}

fn listening(daemon: &Daemon) -> BTreeSet<u16> {
    let mut sockets = HashSet::new();
    for process in daemon.environment.own_processes() {
        let Ok(files) = fs::read_dir(format!("/proc/{}/fd", process.pid)) else { continue };
        sockets.extend(files.flatten().filter_map(|file| {
            let target = fs::read_link(file.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse::<u64>().ok()
        }));
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let listed = tables.iter().flat_map(|table| table.lines()).filter_map(listener);
    listed.filter(|(_, inode)| sockets.contains(inode)).map(|(port, _)| port).collect()
}

/// Port and inode of a line that stands for a listening socket.
fn listener(line: &str) -> Option<(u16, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (_, port) = local.rsplit_once(':')?;
    (*state == "0A").then_some(())?;
    Some((u16::from_str_radix(port, 16).ok()?, inode.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_count() {
        let line =
            "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4242 1 0 100 0 0 10 0";
        assert_eq!(listener(line), Some((8080, 4242)));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl local_address rem_address st tx_queue"), None);
    }
}
