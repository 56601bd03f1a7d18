//! How much was written to Kubernetes, as the apiserver counts it.

use std::ops::Sub;

/// Writes by kind; one that met a conflict is one too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Writes {
    /// Changes of commands and of their status; creations and deletions are their user's.
    pub(super) commands: u64,
    /// Stored logs: `ConfigMaps`, new and changed.
    pub(super) logs: u64,
    /// Changes of leases and of their status.
    pub(super) leases: u64,
    /// Events.
    pub(super) events: u64,
}

impl Writes {
    /// Reads the apiserver's metrics.
    pub(super) fn read(metrics: &str) -> Self {
        let mut writes = Self::default();
        for line in metrics.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{")) {
            let Some((labels, count)) = line.rsplit_once("} ") else { continue };
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\""))?;
                rest.split('"').next()
            };
            let (Some(verb), Some(resource)) = (label(",verb"), label(",resource")) else { continue };
            // Written by the apiserver as 1 or 1e+06.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let count = count.parse::<f64>().unwrap_or_default() as u64;
            let changed = matches!(verb, "PATCH" | "PUT" | "APPLY");
            let kind = match resource {
                "sandboxcommands" if changed => &mut writes.commands,
                "sandboxleases" if changed => &mut writes.leases,
                "configmaps" if changed || verb == "POST" => &mut writes.logs,
                "events" if changed || verb == "POST" => &mut writes.events,
                _ => continue,
            };
            *kind += count;
        }
        writes
    }
}

impl Sub for Writes {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            commands: self.commands.saturating_sub(earlier.commands),
            logs: self.logs.saturating_sub(earlier.logs),
            leases: self.leases.saturating_sub(earlier.leases),
            events: self.events.saturating_sub(earlier.events),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_and_creations_of_commands_are_not() {
        let line = |code: u16, resource: &str, subresource: &str, verb: &str, count: &str| {
            format!(
                "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"g\",\
                 resource=\"{resource}\",scope=\"resource\",subresource=\"{subresource}\",verb=\"{verb}\",\
                 version=\"v1\"}} {count}\n"
            )
        };
        let metrics = [
            "# HELP apiserver_request_total [STABLE] Counter\n".to_owned(),
            line(200, "sandboxcommands", "status", "APPLY", "2"),
            line(200, "sandboxcommands", "", "PATCH", "2e+01"),
            line(201, "sandboxcommands", "", "POST", "9"),
            line(409, "sandboxcommands", "status", "APPLY", "5"),
            line(200, "sandboxcommands", "", "WATCH", "7"),
            line(200, "sandboxleases", "status", "APPLY", "3"),
            line(201, "configmaps", "", "POST", "4"),
            line(201, "events", "", "POST", "6"),
        ];
        let writes = Writes::read(&metrics.concat());
        assert_eq!(writes, Writes { commands: 27, logs: 4, leases: 3, events: 6 });
        assert_eq!((writes - Writes { commands: 20, ..Writes::default() }).commands, 7);
    }
}
