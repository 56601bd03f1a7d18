//! The arguments made valid: no later surprises.

use std::time::Duration;

use url::{Host, Url};

use crate::{
    daytona::{Endpoint, Key, Timeouts},
    plan::lease::Intervals,
};

/// Which namespaces may use the controller's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum ControllerKeyFor {
    /// Those labelled `daytona-controller.dev/controller-key: allowed`.
    Labelled,
    /// All.
    All,
    /// None.
    None,
}

/// Whether copies of Daytona keys are kept in the controller's own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum CredentialEscrow {
    /// They are, so that a lease can be let go whose namespace is being deleted.
    Enabled,
    /// They are not.
    Disabled,
}

/// What becomes of a sandbox that is ours and whose lease is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum OrphanPolicy {
    /// It is told, and left alone.
    Report,
    /// It is deleted, if its lease wanted that.
    Delete,
}

/// How orphans are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Orphans {
    /// What becomes of them.
    pub policy: OrphanPolicy,
    /// How often.
    pub interval: Duration,
    /// For how long one must have been seen before it is deleted.
    pub grace: Duration,
}

/// What the controller runs with.
#[derive(Debug)]
pub struct Config {
    /// The controller's own API and what leases may name; the first entry is the controller's own.
    pub allowed: Vec<Endpoint>,
    /// The controller's own key.
    pub key: Option<Key>,
    /// Who may use it.
    pub key_for: ControllerKeyFor,
    /// The controller's own namespace.
    pub own_namespace: String,
    /// Whether copies of keys are kept in it.
    pub credential_escrow: CredentialEscrow,
    /// What the cluster is called on its sandboxes; `None`: the UID of its namespace `kube-system`.
    pub cluster_id: Option<String>,
    /// How orphans are looked for.
    pub orphans: Orphans,
    /// How often leases are looked at.
    pub intervals: Intervals,
    /// How long a wait for a command's end is held by one call.
    pub hold: Duration,
    /// How often a running command is looked at by itself.
    pub command_poll: Duration,
    /// How old the gauges in a lease's status may be.
    pub gauges: Duration,
    /// How long a watch lasts before it is made anew.
    pub watch: Duration,
    /// Bytes of stored logs that a namespace may hold.
    pub log_budget: u64,
    /// Limits of a call to Daytona.
    pub timeouts: Timeouts,
}

/// What is wrong with an entry of the allow-list.
#[derive(Debug, thiserror::Error)]
#[error(
    "{entry:?}: {why}; write it as URL or URL=TOOLBOX_ORIGIN[,TOOLBOX_ORIGIN...], for example https://app.daytona.io/api=https://proxy.app.daytona.io"
)]
pub struct InvalidEndpoint {
    entry: String,
    why: &'static str,
}

impl Config {
    /// The entry for this URL: origin and path compared exactly, a slash at the end apart.
    #[must_use]
    pub fn endpoint(&self, api_url: &str) -> Option<&Endpoint> {
        let wanted = Url::parse(api_url).ok()?;
        self.allowed.iter().find(|e| same(&e.api_url, &wanted))
    }
}

fn same(a: &Url, b: &Url) -> bool {
    let path = |u: &Url| u.path().trim_end_matches('/').to_owned();
    a.origin() == b.origin() && path(a) == path(b) && b.username().is_empty() && b.password().is_none()
}

/// Where the public service serves the toolboxes of its sandboxes.
const PUBLIC_TOOLBOX: &str = "https://proxy.app.daytona.io";

fn public_api() -> Option<Url> {
    Url::parse("https://app.daytona.io/api").ok()
}

/// Reads the allow-list; the first entry is the controller's own API. Entries for the same API are one.
///
/// # Errors
/// When one of them is not a URL that a key may be sent to.
pub fn parse_endpoints<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Vec<Endpoint>, InvalidEndpoint> {
    let mut all: Vec<Endpoint> = Vec::new();
    for entry in entries {
        let new = parse_endpoint(entry)?;
        match all.iter_mut().find(|known| same(&known.api_url, &new.api_url)) {
            Some(known) => known.toolbox_origins.extend(new.toolbox_origins),
            None => all.push(new),
        }
    }
    Ok(all)
}

fn parse_endpoint(entry: &str) -> Result<Endpoint, InvalidEndpoint> {
    let invalid = |why| InvalidEndpoint { entry: entry.to_owned(), why };
    let (url, origins) = entry.split_once('=').map_or((entry, None), |(url, origins)| (url, Some(origins)));
    let api_url = safe_url(url).map_err(invalid)?;
    let toolbox_origins = match origins {
        Some(origins) => origins
            .split(',')
            .map(|origin| safe_url(origin).map(|u| u.origin().ascii_serialization()).map_err(invalid))
            .collect::<Result<_, _>>()?,
        None if public_api().is_some_and(|public| same(&public, &api_url)) => vec![PUBLIC_TOOLBOX.to_owned()],
        None => vec![api_url.origin().ascii_serialization()],
    };
    Ok(Endpoint { api_url, toolbox_origins })
}

fn safe_url(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text.trim()).map_err(|_| "it is not a URL")?;
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => return Err("it has no host"),
    };
    match url.scheme() {
        "https" => {}
        "http" if loopback => {}
        _ => return Err("it must be https (http only for a loopback host)"),
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err("it must not carry credentials, a query or a fragment");
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_an_api_and_its_toolboxes() {
        let entry = parse_endpoint("https://app.daytona.io/api=https://proxy.app.daytona.io/toolbox").unwrap();
        assert_eq!(entry.toolbox_origins, ["https://proxy.app.daytona.io"]);
        let own = parse_endpoint("http://127.0.0.1:3000/api").unwrap();
        assert_eq!(own.toolbox_origins, ["http://127.0.0.1:3000"]);
        let public = parse_endpoint("https://app.daytona.io/api").unwrap();
        assert_eq!(public.toolbox_origins, ["https://proxy.app.daytona.io"]);
        let merged =
            parse_endpoints(["https://app.daytona.io/api", "https://app.daytona.io/api/=https://eu.example"]).unwrap();
        assert_eq!(merged.len(), 1);
        assert_eq!(merged[0].toolbox_origins, ["https://proxy.app.daytona.io", "https://eu.example"]);
        for bad in [
            "",
            "app.daytona.io",
            "http://app.daytona.io/api",
            "https://me:pw@app.daytona.io",
            "https://a.b/?q",
            "ftp://a.b",
        ] {
            assert!(parse_endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origin_and_path_are_compared_exactly() {
        let url = |text| Url::parse(text).unwrap();
        let own = url("https://app.daytona.io/api");
        assert!(same(&own, &url("https://APP.daytona.io:443/api/")));
        for other in [
            "https://app.daytona.io/api2",
            "https://app.daytona.io.evil.example/api",
            "http://app.daytona.io/api",
            "https://app.daytona.io:444/api",
            "https://x@app.daytona.io/api",
        ] {
            assert!(!same(&own, &url(other)), "{other}");
        }
    }
}
