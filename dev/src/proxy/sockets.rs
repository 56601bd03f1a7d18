//! What the kernel tells of connections on loopback.

use std::net::SocketAddr;

const TABLE: &str = "/proc/net/tcp";

/// Whether the kernel still holds bytes on the way to the caller, on our side or on the caller's.
pub(super) fn is_under_way(caller: SocketAddr, own: SocketAddr) -> bool {
    let table = std::fs::read_to_string(TABLE).unwrap_or_default();
    holds(&table, own, caller, 0) || holds(&table, caller, own, 1)
}

/// Whether the socket from `local` to `remote` has bytes queued: to be sent (0) or to be read (1).
fn holds(table: &str, local: SocketAddr, remote: SocketAddr, queue: usize) -> bool {
    let (Some(local), Some(remote)) = (in_table(local), in_table(remote)) else { return false };
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next() != Some(local.as_str()) || words.next() != Some(remote.as_str()) {
            return false;
        }
        let queues = words.nth(1).unwrap_or_default();
        queues.split(':').nth(queue).and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|bytes| bytes > 0)
    })
}

/// Whether this process has the end of a connection that is at this address.
#[must_use]
pub fn is_end_of(end: SocketAddr, pid: u32) -> bool {
    let table = std::fs::read_to_string(TABLE).unwrap_or_default();
    let Some(socket) = inode(&table, end).map(|inode| format!("socket:[{inode}]")) else { return false };
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|file| file.as_os_str() == socket.as_str())
}

/// The number of the socket at an address.
fn inode(table: &str, local: SocketAddr) -> Option<u64> {
    let local = in_table(local)?;
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next() != Some(local.as_str()) {
            return None;
        }
        // One that nobody has any more has none.
        words.nth(7)?.parse().ok().filter(|inode| *inode != 0)
    })
}

/// An address as the kernel's table has it.
fn in_table(address: SocketAddr) -> Option<String> {
    match address {
        SocketAddr::V4(v4) => Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(v4.ip().octets()), v4.port())),
        SocketAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid timeout inode\n\
                     \x20  0: 0100007F:1F90 0100007F:C350 01 00000000:00000005 00:00000000 00000000     0        0 4711 1\n";
        let (a, b) = (SocketAddr::from(([127, 0, 0, 1], 8080)), SocketAddr::from(([127, 0, 0, 1], 50000)));
        assert!(holds(table, a, b, 1));
        assert!(!holds(table, a, b, 0) && !holds(table, b, a, 1));
        assert_eq!((inode(table, a), inode(table, b)), (Some(4711), None));
    }

    #[test]
    fn the_process_that_has_an_end_of_a_connection_is_known() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (end, own) = (stream.local_addr().unwrap(), std::process::id());
        assert!(is_end_of(end, own));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_end_of(end, other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
        drop(stream);
        assert!(!is_end_of(end, own));
    }
}
