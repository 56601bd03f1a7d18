//! The results as tables, as JSON, and as one line.

use std::fmt::{self, Display, Write};

use serde::{Deserialize, Serialize};

use super::latency::{Latency, Launcher};
use super::load::Load;
use super::throughput::Throughput;

/// All that one run has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Script by launcher.
    pub latency: Vec<Latency>,
    /// Many leases at once.
    pub throughput: Throughput,
    /// Much that stays.
    pub load: Load,
}

/// The last line.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    overhead_ms: f64,
    vs_sdk: f64,
    throughput: f64,
    daytona_calls: f64,
    kube_writes: f64,
    rss_mib: f64,
    idle_calls: f64,
}

impl Results {
    /// `true` in a session, throughput and load.
    fn line(&self) -> Line {
        let short = self.latency.iter().find(|one| one.launcher == Launcher::Session);
        let of = |figure: fn(&Latency) -> f64| short.map_or(f64::NAN, figure);
        Line {
            overhead_ms: of(Latency::overhead_ms),
            vs_sdk: of(Latency::vs_sdk),
            throughput: self.throughput.ratio(),
            daytona_calls: of(|one| one.daytona_calls),
            kube_writes: of(|one| one.kube_writes),
            rss_mib: self.load.rss_mib(),
            idle_calls: self.load.idle_calls_for_commands(),
        }
    }

    /// The last line beside that of another run.
    #[must_use]
    pub fn compared_with(&self, other: &Self) -> String {
        let (new, old) = (self.line(), other.line());
        let mut table = Table::new(&["figure", "before", "now"]);
        for ((name, new), (_, old)) in new.figures().into_iter().zip(old.figures()) {
            table.row(&[name.to_owned(), format!("{old:.2}"), format!("{new:.2}")]);
        }
        table.to_string()
    }
}

impl Line {
    fn figures(self) -> [(&'static str, f64); 7] {
        [
            ("overhead_ms", self.overhead_ms),
            ("vs_sdk", self.vs_sdk),
            ("throughput", self.throughput),
            ("daytona_calls", self.daytona_calls),
            ("kube_writes", self.kube_writes),
            ("rss_mib", self.rss_mib),
            ("idle_calls", self.idle_calls),
        ]
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, figure)) in self.figures().into_iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{name}={figure:.2}")?;
        }
        Ok(())
    }
}

impl Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut times = Table::new(&["script", "launcher", "what", "n", "median ms", "p99 ms", "min ms", "max ms"]);
        let mut costs = Table::new(&[
            "script",
            "launcher",
            "overhead ms",
            "of SDK",
            "Daytona calls",
            "writes",
            "events",
            "lease writes",
        ]);
        for one in &self.latency {
            let launcher = match one.launcher {
                Launcher::Session => "session",
                Launcher::OneShot => "one-shot",
            };
            let head = [one.script.clone(), launcher.to_owned()];
            for (what, spread) in [("raw calls", one.raw), ("SDK", one.sdk), ("controller", one.controller)] {
                let times_of = [spread.median_ms, spread.p99_ms, spread.min_ms, spread.max_ms];
                let cells = times_of.map(|ms| format!("{ms:.1}"));
                times.row(&[&head[..], &[what.to_owned(), spread.count.to_string()], &cells].concat());
            }
            let rest =
                [one.overhead_ms(), one.vs_sdk(), one.daytona_calls, one.kube_writes, one.events, one.lease_writes];
            costs.row(&[&head[..], &rest.map(|figure| format!("{figure:.2}"))].concat());
        }
        writeln!(f, "One command, in turns:\n{times}\n{costs}")?;
        let Throughput { leases, commands, controller_per_s, plain_per_s, plain_writes, writes, daytona_calls } =
            self.throughput;
        let [on_commands, on_leases, events] = writes;
        writeln!(
            f,
            "Many leases: {commands} commands in {leases} leases: {controller_per_s:.1} per second, a plain program \
             {plain_per_s:.1} with {plain_writes} writes each.\nPer command: {daytona_calls:.2} calls to Daytona, {on_commands:.2} writes, \
             {on_leases:.2} on leases, {events:.2} events.\n"
        )?;
        let load = &self.load;
        writeln!(
            f,
            "Load: {} leases (ready after {:.1} s), {} finished commands, {} queued: peak {:.1} MiB, after a restart \
             {:.1} MiB.\nThen idle: {:.1} writes per minute, and these calls to Daytona per minute:",
            load.leases,
            load.leases_ready_s,
            load.finished,
            load.queued,
            load.peak_mib,
            load.peak_after_restart_mib,
            load.idle_writes,
        )?;
        for (route, count) in &load.idle_calls {
            writeln!(f, "  {count:>8.1}  {route}")?;
        }
        write!(f, "\n{}", self.line())
    }
}

/// A plain table; numbers stand at the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().filter_map(|row| Some(row.get(column)?.len())).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let number = cell.parse::<f64>().is_ok();
                if number {
                    write!(line, "{cell:>width$}  ")?;
                } else {
                    write!(line, "{cell:<width$}  ")?;
                }
            }
            writeln!(f, "  {}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_every_figure_once() {
        let line = Line {
            overhead_ms: 20.25,
            vs_sdk: 0.5,
            throughput: 0.75,
            daytona_calls: 2.0,
            kube_writes: 4.0,
            rss_mib: 50.0,
            idle_calls: 0.0,
        };
        assert_eq!(
            line.to_string(),
            "overhead_ms=20.25 vs_sdk=0.50 throughput=0.75 daytona_calls=2.00 kube_writes=4.00 rss_mib=50.00 idle_calls=0.00"
        );
    }

    #[test]
    fn numbers_stand_at_the_right() {
        let mut table = Table::new(&["name", "ms"]);
        table.row(&["a".to_owned(), "1.5".to_owned()]);
        table.row(&["long name".to_owned(), "10.5".to_owned()]);
        assert_eq!(table.to_string(), "  name       ms\n  a           1.5\n  long name  10.5\n");
    }
}
