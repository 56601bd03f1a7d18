//! `GET /sandbox`: filters, order and the cursor.

use std::collections::BTreeMap;

use serde_json::Value;

use super::problem::Problem;
use super::record::{DESTROYED, Record};

const DEFAULT_LIMIT: usize = 100;
const LARGEST_LIMIT: usize = 200;

/// Which sandboxes, in which order, from where on.
#[derive(Debug)]
pub(super) struct Query {
    cursor: Option<(String, String)>,
    limit: usize,
    id: Option<String>,
    name: Option<String>,
    labels: BTreeMap<String, Value>,
    errored_deleted: bool,
    states: Vec<String>,
    sort: String,
    ascending: bool,
}

/// One page, and the cursor of the next.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) records: Vec<&'a Record>,
    pub(super) next: Option<String>,
}

impl Query {
    pub(super) fn parse(query: &str) -> Result<Self, Problem> {
        let mut parsed = Self {
            cursor: None,
            limit: DEFAULT_LIMIT,
            id: None,
            name: None,
            labels: BTreeMap::new(),
            errored_deleted: false,
            states: Vec::new(),
            sort: "lastActivityAt".to_owned(),
            ascending: false,
        };
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            parsed.take(key.trim_end_matches("[]"), value.into_owned())?;
        }
        Ok(parsed)
    }

    fn take(&mut self, key: &str, value: String) -> Result<(), Problem> {
        match key {
            "cursor" if value.is_empty() => {}
            "cursor" => {
                let cursor = read_cursor(&value).ok_or_else(|| Problem::bad_request("Invalid cursor"))?;
                self.cursor = Some(cursor);
            }
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=LARGEST_LIMIT).contains(limit));
                self.limit = limit.ok_or_else(|| Problem::bad_request("limit must be between 1 and 200"))?;
            }
            "id" => self.id = Some(value.to_lowercase()),
            "name" => self.name = Some(value.to_lowercase()),
            "labels" => {
                self.labels = serde_json::from_str(&value)
                    .map_err(|_| Problem::bad_request("labels must be a valid JSON object"))?;
            }
            "includeErroredDeleted" => self.errored_deleted = value == "true",
            "states" => self.states.extend(value.split(',').map(str::to_owned)),
            "sort" => match value.as_str() {
                "name" | "cpu" | "memoryGib" | "diskGib" | "lastActivityAt" | "createdAt" => {
                    self.sort = value;
                }
                _ => return Err(Problem::bad_request("sort must be one of the sortable fields")),
            },
            "order" => match value.as_str() {
                "asc" => self.ascending = true,
                "desc" => self.ascending = false,
                _ => return Err(Problem::bad_request("order must be asc or desc")),
            },
            _ => {}
        }
        Ok(())
    }

    fn wants(&self, record: &Record) -> bool {
        let prefixed = |wanted: &Option<String>, actual: &str| {
            wanted.as_ref().is_none_or(|prefix| actual.to_lowercase().starts_with(prefix))
        };
        // The stored state counts here, not the shown one.
        (self.errored_deleted || !record.is_hidden())
            && prefixed(&self.id, &record.id)
            && prefixed(&self.name, &record.name)
            && (self.states.is_empty() || self.states.contains(&record.state))
            && record.state != DESTROYED
            && self.labels.iter().all(|(key, value)| record.labels().get(key) == Some(value))
    }

    fn key(&self, record: &Record) -> (String, String) {
        let number = |value: i64| format!("{value:020}");
        let value = match self.sort.as_str() {
            "name" => record.name.clone(),
            "cpu" => number(record.given.cpu.unwrap_or(1).into()),
            "memoryGib" => number(record.given.memory.unwrap_or(1).into()),
            "diskGib" => number(record.given.disk.unwrap_or(3).into()),
            "createdAt" => number(record.created_at.millis()),
            _ => number(record.last_activity.millis()),
        };
        (value, record.id.clone())
    }
}

pub(super) fn page<'a>(records: impl Iterator<Item = &'a Record>, query: &Query) -> Page<'a> {
    let mut found: Vec<_> =
        records.filter(|record| query.wants(record)).map(|record| (query.key(record), record)).collect();
    found.sort_by(|(one, _), (other, _)| if query.ascending { one.cmp(other) } else { other.cmp(one) });
    if let Some(cursor) = &query.cursor {
        found.retain(|(key, _)| if query.ascending { key > cursor } else { key < cursor });
    }
    let more = found.len() > query.limit;
    found.truncate(query.limit);
    let next = found.last().filter(|_| more).map(|(key, _)| write_cursor(key));
    Page { records: found.into_iter().map(|(_, record)| record).collect(), next }
}

/// Opaque to the caller, and fit for a URL.
fn write_cursor((value, id): &(String, String)) -> String {
    use std::fmt::Write;
    format!("{value}\n{id}").bytes().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn read_cursor(cursor: &str) -> Option<(String, String)> {
    let digits: Vec<u8> = cursor.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect::<Option<_>>()?;
    let bytes = digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    let text = String::from_utf8(bytes).ok()?;
    text.split_once('\n').map(|(value, id)| (value.to_owned(), id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_the_way_to_the_caller_and_back() {
        let key = ("näme with spaces".to_owned(), "id".to_owned());
        assert_eq!(read_cursor(&write_cursor(&key)), Some(key));
        assert_eq!(read_cursor("zz"), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for query in ["limit=0", "limit=201", "sort=colour", "order=up", "labels=x", "cursor=x"] {
            assert!(Query::parse(query).is_err(), "{query}");
        }
        assert_eq!(Query::parse("states=started&states[]=error").unwrap().states, ["started", "error"]);
    }
}
