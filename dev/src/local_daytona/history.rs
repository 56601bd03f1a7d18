//! What a list shows when it lags: the sandboxes as they were some time ago.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::clock::Moment;
use super::listing::Row;
use super::lock;

/// One view after the other, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<VecDeque<(Moment, Arc<Vec<Row>>)>>);

impl History {
    /// Notes how things are now, and forgets what no list shows any more: all but the newest before `oldest`.
    pub(super) fn note(&self, now: Moment, rows: Vec<Row>, oldest: Moment) {
        let mut views = lock(&self.0);
        if views.back().is_none_or(|(_, last)| **last != rows) {
            views.push_back((now, Arc::new(rows)));
        }
        while views.get(1).is_some_and(|(at, _)| *at <= oldest) {
            views.pop_front();
        }
    }

    /// Nothing lags any more.
    pub(super) fn forget(&self) {
        lock(&self.0).clear();
    }

    /// How things were at `moment`; before the first view, as in that.
    pub(super) fn at(&self, moment: Moment) -> Option<Arc<Vec<Row>>> {
        let views = lock(&self.0);
        let seen = views.iter().rev().find(|(at, _)| *at <= moment).or_else(|| views.front());
        seen.map(|(_, rows)| Arc::clone(rows))
    }
}
