//! `GET /sandbox`: filters, order and the cursor.

use serde_json::{Map, Value};

use super::clock::Moment;
use super::problem::Problem;
use super::record::{DESTROYED, Record};

const DEFAULT_LIMIT: usize = 100;
const LARGEST_LIMIT: i64 = 200;
const ORDERS: [&str; 2] = ["asc", "desc"];
const CLASSES: [&str; 3] = ["linux-vm", "container", "windows"];

/// The filter by states looks at the stored state; an item shows another.
const STORED_STATE: &str = "(stored state)";

/// What a list can be sorted by, and the field that says it.
const SORTS: [(&str, &str); 6] = [
    ("name", "name"),
    ("cpu", "cpu"),
    ("memoryGib", "memory"),
    ("diskGib", "disk"),
    ("lastActivityAt", "lastActivityAt"),
    ("createdAt", "createdAt"),
];

/// All states but `destroyed`, which is never listed.
const STATES: [&str; 21] = [
    "creating",
    "restoring",
    "destroying",
    "started",
    "stopped",
    "starting",
    "stopping",
    "error",
    "build_failed",
    "pending_build",
    "building_snapshot",
    "unknown",
    "pulling_snapshot",
    "archived",
    "archiving",
    "resizing",
    "snapshotting",
    "forking",
    "pausing",
    "paused",
    "resuming",
];

/// A sandbox as a list shows it, and what decides whether it does.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    organization: String,
    state: String,
    hidden: bool,
    item: Map<String, Value>,
}

impl Row {
    pub(super) fn of(record: &Record, toolbox: &str) -> Self {
        Self {
            organization: record.organization.clone(),
            state: record.state.clone(),
            hidden: record.is_hidden(),
            item: record.show_in_list(toolbox),
        }
    }

    fn text(&self, field: &str) -> &str {
        if field == STORED_STATE {
            return &self.state;
        }
        self.item.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, field: &str) -> i64 {
        self.item.get(field).and_then(Value::as_i64).unwrap_or_default()
    }
}

/// What a filter asks of one field.
#[derive(Debug)]
enum Filter {
    /// Begins with this, in whatever case.
    Prefix(&'static str, String),
    OneOf(&'static str, Vec<String>),
    AtLeast(&'static str, i64),
    AtMost(&'static str, i64),
    Is(&'static str, bool),
    Since(&'static str, String),
    Until(&'static str, String),
    Labels(Map<String, Value>),
}

/// Makes a filter of a bound.
type Bound<T> = fn(&'static str, T) -> Filter;

impl Filter {
    fn takes(&self, row: &Row) -> bool {
        match self {
            Self::Prefix(field, prefix) => row.text(field).to_lowercase().starts_with(prefix),
            Self::OneOf(field, values) => values.iter().any(|value| value == row.text(field)),
            Self::AtLeast(field, least) => row.number(field) >= *least,
            Self::AtMost(field, most) => row.number(field) <= *most,
            Self::Is(field, wanted) => (row.item.get(*field) == Some(&Value::Bool(true))) == *wanted,
            // All moments are written in one form, which sorts as they do; what has none fits no bound.
            Self::Since(field, moment) => row.text(field) >= moment.as_str(),
            Self::Until(field, moment) => row.item.contains_key(*field) && row.text(field) <= moment.as_str(),
            Self::Labels(labels) => {
                let own = row.item.get("labels");
                labels.iter().all(|(key, value)| own.and_then(|own| own.get(key)) == Some(value))
            }
        }
    }
}

/// Which sandboxes, in which order, from where on.
#[derive(Debug)]
pub(super) struct Query {
    cursor: Option<(String, String)>,
    limit: usize,
    filters: Vec<Filter>,
    errored_deleted: bool,
    sort: &'static str,
    ascending: bool,
    /// What cannot be, all of it told at once.
    wrong: Vec<String>,
}

/// One page, and the cursor of the next.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) items: Vec<Value>,
    pub(super) next: Option<String>,
}

impl Page {
    /// The first, the third and so on.
    pub(super) fn leave_out_every_other(&mut self) {
        let mut shown = true;
        self.items.retain(|_| {
            shown = !shown;
            shown
        });
    }
}

impl Query {
    pub(super) fn parse(query: &str) -> Result<Self, Problem> {
        let mut parsed = Self {
            cursor: None,
            limit: DEFAULT_LIMIT,
            filters: Vec::new(),
            errored_deleted: false,
            sort: "lastActivityAt",
            ascending: false,
            wrong: Vec::new(),
        };
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            parsed.take(key.trim_end_matches("[]"), &value)?;
        }
        if parsed.wrong.is_empty() { Ok(parsed) } else { Err(Problem::bad_request(parsed.wrong.join(", "))) }
    }

    fn take(&mut self, key: &str, value: &str) -> Result<(), Problem> {
        let truth = value == "true";
        match key {
            "cursor" if value.is_empty() => {}
            "cursor" => {
                self.cursor = Some(read_cursor(value).ok_or_else(|| Problem::bad_request("Invalid cursor"))?);
            }
            "limit" => {
                let limit = self.number(key, value, Some(LARGEST_LIMIT));
                self.limit = limit.and_then(|limit| limit.try_into().ok()).unwrap_or(DEFAULT_LIMIT);
            }
            "id" => self.filters.push(Filter::Prefix("id", value.to_lowercase())),
            "name" => self.filters.push(Filter::Prefix("name", value.to_lowercase())),
            "labels" => {
                let labels = serde_json::from_str(value);
                self.filters
                    .push(Filter::Labels(labels.map_err(|_| Problem::bad_request("Invalid labels JSON format"))?));
            }
            "includeErroredDeleted" => self.errored_deleted = truth,
            "isPublic" => self.filters.push(Filter::Is("public", truth)),
            "isRecoverable" => self.filters.push(Filter::Is("recoverable", truth)),
            "states" | "snapshots" | "regionIds" | "sandboxClasses" => self.one_of(key, value),
            "sort" => match SORTS.iter().find(|(name, _)| *name == value) {
                Some((_, field)) => self.sort = field,
                None => self.not_one_of(key, &SORTS.map(|(name, _)| name)),
            },
            "order" if ORDERS.contains(&value) => self.ascending = value == "asc",
            "order" => self.not_one_of(key, &ORDERS),
            _ => self.range(key, value),
        }
        Ok(())
    }

    /// A lower or upper bound; what is none is ignored, as the service does.
    fn range(&mut self, key: &str, value: &str) {
        let number: Option<(Bound<i64>, _)> = match key {
            "minCpu" => Some((Filter::AtLeast, "cpu")),
            "maxCpu" => Some((Filter::AtMost, "cpu")),
            "minMemoryGiB" => Some((Filter::AtLeast, "memory")),
            "maxMemoryGiB" => Some((Filter::AtMost, "memory")),
            "minDiskGiB" => Some((Filter::AtLeast, "disk")),
            "maxDiskGiB" => Some((Filter::AtMost, "disk")),
            _ => None,
        };
        let moment: Option<(Bound<String>, _)> = match key {
            "createdAtAfter" => Some((Filter::Since, "createdAt")),
            "createdAtBefore" => Some((Filter::Until, "createdAt")),
            "lastEventAfter" => Some((Filter::Since, "lastActivityAt")),
            "lastEventBefore" => Some((Filter::Until, "lastActivityAt")),
            "autoDestroyAtAfter" => Some((Filter::Since, "autoDestroyAt")),
            "autoDestroyAtBefore" => Some((Filter::Until, "autoDestroyAt")),
            _ => None,
        };
        if let Some((bound, field)) = number {
            let filter = self.number(key, value, None).map(|number| bound(field, number));
            self.filters.extend(filter);
        } else if let Some((bound, field)) = moment {
            match Moment::parse(value) {
                Some(moment) => self.filters.push(bound(field, moment.to_string())),
                None => self.wrong.push(format!("{key} must be a Date instance")),
            }
        }
    }

    /// One of these values; a repeated key adds to them.
    fn one_of(&mut self, key: &str, value: &str) {
        let (field, each, known): (_, _, Option<&[&str]>) = match key {
            "states" => (STORED_STATE, "each value", Some(&STATES)),
            "snapshots" => ("snapshot", "", None),
            "regionIds" => ("target", "", None),
            _ => ("sandboxClass", "each value in sandboxClasses", Some(&CLASSES)),
        };
        let new: Vec<_> = value.split(',').map(str::to_owned).collect();
        if let Some(known) = known
            && new.iter().any(|value| !known.contains(&value.as_str()))
        {
            return self.not_one_of(each, known);
        }
        let so_far = self.filters.iter_mut().find_map(|filter| match filter {
            Filter::OneOf(taken, values) if *taken == field => Some(values),
            _ => None,
        });
        match so_far {
            Some(values) => values.extend(new),
            None => self.filters.push(Filter::OneOf(field, new)),
        }
    }

    fn number(&mut self, key: &str, value: &str, most: Option<i64>) -> Option<i64> {
        let number: Option<i64> = value.parse().ok();
        if most.is_some_and(|most| number.is_none_or(|number| number > most)) {
            self.wrong.push(format!("{key} must not be greater than {}", most.unwrap_or_default()));
        }
        if number.is_none_or(|number| number < 1) {
            self.wrong.push(format!("{key} must not be less than 1"));
        }
        if number.is_none() {
            self.wrong.push(format!("{key} must be an integer number"));
        }
        number
    }

    fn not_one_of(&mut self, what: &str, values: &[&str]) {
        self.wrong.push(format!("{what} must be one of the following values: {}", values.join(", ")));
    }

    fn wants(&self, row: &Row, organization: &str) -> bool {
        row.organization == organization
            && row.state != DESTROYED
            && (self.errored_deleted || !row.hidden)
            && self.filters.iter().all(|filter| filter.takes(row))
    }

    fn key(&self, row: &Row) -> (String, String) {
        let value = match row.item.get(self.sort) {
            Some(Value::Number(_)) => format!("{:020}", row.number(self.sort)),
            _ => row.text(self.sort).to_owned(),
        };
        (value, row.text("id").to_owned())
    }

    /// The page of `rows` that is asked for.
    pub(super) fn page<'a>(&self, rows: impl IntoIterator<Item = &'a Row>, organization: &str) -> Page {
        let wanted = rows.into_iter().filter(|row| self.wants(row, organization));
        let mut found: Vec<_> = wanted.map(|row| (self.key(row), row)).collect();
        found.sort_by(|(one, _), (other, _)| if self.ascending { one.cmp(other) } else { other.cmp(one) });
        if let Some(cursor) = &self.cursor {
            found.retain(|(key, _)| if self.ascending { key > cursor } else { key < cursor });
        }
        let more = found.len() > self.limit;
        found.truncate(self.limit);
        let next = found.last().filter(|_| more).map(|(key, _)| write_cursor(key));
        Page { items: found.into_iter().map(|(_, row)| Value::Object(row.item.clone())).collect(), next }
    }
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
        for query in
            ["limit=0", "limit=201", "sort=colour", "order=up", "labels=x", "cursor=x", "minCpu=0", "createdAtAfter=x"]
        {
            assert!(Query::parse(query).is_err(), "{query}");
        }
        let parsed = Query::parse("states=started&states[]=error,stopped&snapshots=a&snapshots=b").unwrap();
        let [Filter::OneOf(STORED_STATE, states), Filter::OneOf("snapshot", snapshots)] = parsed.filters.as_slice()
        else {
            panic!("{parsed:?}");
        };
        assert_eq!((states.join(" "), snapshots.join(" ")), ("started error stopped".to_owned(), "a b".to_owned()));
    }
}
