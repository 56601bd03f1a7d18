//! One HTTP client per API URL and key, and the one function through which every call goes.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use reqwest::{header, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;
use tracing::Instrument;
use url::Url;

use super::{
    budget::{Budget, retry_after},
    call::{Body, Call, below, form},
    error::{Class, Error},
    outage::PROBE,
};
use crate::leadership::Leadership;

/// Largest answer that is read, in bytes.
const LARGEST_BODY: usize = 4 * 1024 * 1024;

/// Where calls go: the API and the origins that its sandboxes' toolboxes may live at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Base URL of the API, for example `https://app.daytona.io/api`.
    pub api_url: Url,
    /// Origins to which the key may be sent besides, for example `https://proxy.app.daytona.io`.
    pub toolbox_origins: Vec<String>,
}

/// A Daytona API key. Shown nowhere.
#[derive(Clone, Debug)]
pub struct Key(SecretString);

impl Key {
    /// Takes a key as it stands in a Secret; a newline at its end does not belong to it.
    ///
    /// # Errors
    /// With a reason for a person, when it cannot be a key: empty, or with blanks or characters that no header carries.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let key = text.trim_end_matches(['\r', '\n']);
        if key.is_empty() {
            return Err("it is empty");
        }
        if !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("it holds blanks or characters that an API key cannot have");
        }
        Ok(Self(SecretString::from(key)))
    }

    /// The key itself, to be kept where only the controller reads.
    #[must_use]
    pub fn secret(&self) -> &SecretString {
        &self.0
    }

    /// Its SHA-256. Two keys are the same only when all of it is the same.
    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.expose_secret()).into()
    }

    /// First 32 hexadecimal digits of its SHA-256: enough to see that it changed, too little to learn it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.digest().iter().take(16).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// How long calls may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Until the connection stands.
    pub connect: Duration,
    /// Until a call is answered completely; a held wait has this much beyond the time it is held.
    pub request: Duration,
    /// Until the next byte of an answer; longer than any wait that is held.
    pub idle: Duration,
}

/// A client for one API URL and key.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    endpoint: Endpoint,
    key: Key,
    fingerprint: String,
    timeouts: Timeouts,
    leadership: Leadership,
    back: broadcast::Sender<Back>,
    pub(super) budget: Arc<Budget>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("api_url", &self.endpoint.api_url.as_str())
            .field("key", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// Where calls go, the whole digest of the key that they carry, and the organisation that they name.
type Place = (Endpoint, [u8; 32], Option<String>);

/// Names the organisation, for what goes by it: Daytona itself reads it beside other credentials than API keys.
const ORGANIZATION: &str = "x-daytona-organization-id";

/// How long a client that nobody uses is kept: longer than any pause that Daytona asks for, which must not be forgotten
/// because those that ask come one after the other.
const KEPT: Duration = Duration::from_mins(15);

/// So many ends of outages may wait to be heard of.
const HEARD: usize = 64;

/// Where, and with which key, there are answers again.
#[derive(Clone, Debug)]
pub struct Back {
    api_url: Url,
    fingerprint: String,
}

#[derive(Debug)]
struct Known {
    client: Arc<Client>,
    used: Instant,
}

/// The clients in use, one per URL and key, so that all leases with the same key share one budget.
#[derive(Debug)]
pub struct Clients {
    timeouts: Timeouts,
    leadership: Leadership,
    back: broadcast::Sender<Back>,
    known: Mutex<HashMap<Place, Known>>,
}

impl Clients {
    /// No clients yet. None of them makes a call while this process does not lead.
    #[must_use]
    pub fn new(timeouts: Timeouts, leadership: Leadership) -> Self {
        Self { timeouts, leadership, back: broadcast::Sender::new(HEARD), known: Mutex::default() }
    }

    /// Tells each time when an API that had not answered does so again.
    #[must_use]
    pub fn back(&self) -> broadcast::Receiver<Back> {
        self.back.subscribe()
    }

    /// The client for this endpoint and key, and for an organisation where one is named; dropped some time after its last use.
    ///
    /// # Errors
    /// When the TLS backend or its root certificates cannot be set up, or the organisation is none.
    pub fn get(&self, endpoint: &Endpoint, key: &Key, organization: Option<&str>) -> Result<Arc<Client>, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        known.retain(|_, known| Arc::strong_count(&known.client) > 1 || now.duration_since(known.used) < KEPT);
        let place = (endpoint.clone(), key.digest(), organization.map(str::to_owned));
        if let Some(known) = known.get_mut(&place) {
            known.used = now;
            return Ok(Arc::clone(&known.client));
        }
        // Daytona counts by key, whatever organisation is named beside it.
        let same = known.iter().find(|((other, digest, _), _)| other == endpoint && *digest == place.1);
        let budget = same.map(|(_, known)| Arc::clone(&known.client.budget));
        let budget = budget.unwrap_or_else(|| Arc::new(Budget::new()));
        let http = http(key, organization, self.timeouts)?;
        let client = Arc::new(Client {
            http,
            endpoint: endpoint.clone(),
            key: key.clone(),
            fingerprint: key.fingerprint(),
            timeouts: self.timeouts,
            leadership: self.leadership.clone(),
            back: self.back.clone(),
            budget,
        });
        known.insert(place, Known { client: Arc::clone(&client), used: now });
        Ok(client)
    }
}

impl Client {
    /// Whether its calls are those that are answered again.
    #[must_use]
    pub fn is_of(&self, back: &Back) -> bool {
        self.endpoint.api_url == back.api_url && self.fingerprint == back.fingerprint
    }

    /// Where its calls go.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The key that its calls carry.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Fingerprint of its key.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// A URL below the API's base; each segment is percent-encoded.
    pub(super) fn url(&self, segments: &[&str]) -> Url {
        below(&self.endpoint.api_url, segments)
    }

    /// Makes a call whose answer has a body.
    pub(super) async fn fetch<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let operation = call.operation;
        let body = self.send(call).await?;
        // An empty or foreign body under a 200 says that something between us and Daytona is broken.
        serde_json::from_slice(&body).map_err(|error| {
            // What it says of a value may quote it, and a gateway may have put the key there.
            let (kind, line, column) = (error.classify(), error.line(), error.column());
            let text = format!("the answer is not what was expected ({kind:?} error at line {line}, column {column})");
            Error::new(operation, Class::Unclear, text)
        })
    }

    /// Makes a call, unless nobody has answered lately.
    pub(super) async fn send(&self, call: Call) -> Result<Vec<u8>, Error> {
        let (toolbox, outage) = (call.limiter.is_toolbox(), &self.budget.outage);
        if let Some(cause) = outage.cause(toolbox) {
            let every = PROBE.as_secs();
            let text = format!("{cause}; whether it is back is tried every {every} seconds for all with this key");
            return Err(Error::new(call.operation, Class::NotMade, text));
        }
        let result = self.make(call).await;
        match &result {
            Err(error) if error.class == Class::NotMade || error.is_pause() => {}
            Err(error) if error.is_silence() => {
                if outage.unheard(toolbox, &error.message) {
                    tracing::warn!(api = %self.endpoint.api_url, key = %self.fingerprint, %error, "Daytona does not answer");
                    tokio::spawn(self.clone().until_back());
                }
            }
            _ => outage.heard(toolbox),
        }
        result
    }

    /// Tries until there is an answer, or nobody wants to know any more.
    async fn until_back(self) {
        loop {
            tokio::time::sleep(PROBE).await;
            if self.budget.outage.is_forgotten() {
                return self.budget.outage.over();
            }
            match self.make(self.list_one()).await {
                Err(error) if error.class == Class::NotMade || error.is_pause() || error.is_silence() => {}
                _ => break,
            }
        }
        self.budget.outage.over();
        tracing::info!(api = %self.endpoint.api_url, key = %self.fingerprint, "Daytona answers again");
        // Nobody listens while the controller ends.
        let _ = self.back.send(Back { api_url: self.endpoint.api_url.clone(), fingerprint: self.fingerprint.clone() });
    }

    /// The only place that touches the network.
    async fn make(&self, call: Call) -> Result<Vec<u8>, Error> {
        let Call { operation, limiter, method, url, body, held, limit, with_body, unnoticed } = call;
        let span = tracing::debug_span!("daytona", operation, status = tracing::field::Empty);
        async {
            let _place = self.budget.admit(limiter).await.map_err(|left| {
                Error::new(operation, Class::Throttled(left), "Daytona asked for a pause; the call was not made")
            })?;
            let usual = self.timeouts.request + held;
            let mut request = self.http.request(method, url).timeout(limit.map_or(usual, |l| l.min(usual)));
            if unnoticed {
                request = request.header("X-Daytona-Skip-Last-Activity-Update", "true");
            }
            // Of files nobody knows whether they are secret, and an answer may repeat them.
            let discreet = matches!(body, Body::Files(_));
            request = match body {
                Body::None => request,
                Body::Json(body) => request.json(&body),
                Body::Files(files) => request.multipart(form(files)),
            };
            // Last, for it may have waited.
            let leads = self.leadership.check();
            leads.map_err(|e| Error::new(operation, Class::NotMade, e.to_string()))?;
            let mut response = request.send().await.map_err(|e| Error::from_connection(operation, e))?;
            let status = response.status();
            tracing::Span::current().record("status", status.as_u16());
            let pause = retry_after(response.headers(), limiter);
            if status.is_success() && !with_body {
                return Ok(Vec::new());
            }
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(|e| Error::from_connection(operation, e))? {
                if body.len() + chunk.len() > LARGEST_BODY {
                    return Err(Error::new(operation, Class::Unclear, "the answer is larger than 4 MiB"));
                }
                body.extend_from_slice(&chunk);
            }
            if status.is_success() {
                return Ok(body);
            }
            // A gateway may echo the request's headers.
            let said = String::from_utf8_lossy(&body).replace(self.key.0.expose_secret(), "***");
            let error = Error::from_answer(operation, status.as_u16(), pause, &said);
            // The control plane has just accepted the key: a toolbox that does not means "gone, or not yours".
            let error = match error.class {
                Class::Unauthorized if limiter.is_toolbox() => Error { class: Class::NotYet, ..error },
                _ => error,
            };
            let error = if discreet {
                let told = "its words are left out, for they may repeat what was sent";
                Error { message: format!("Daytona answered {status}; {told}"), ..error }
            } else {
                error
            };
            if let Class::Throttled(length) = error.class {
                self.budget.pause(limiter, length);
            }
            tracing::debug!(%error, "call failed");
            Err(error)
        }
        .instrument(span)
        .await
    }
}

/// The connections that carry this key.
fn http(key: &Key, organization: Option<&str>, timeouts: Timeouts) -> Result<reqwest::Client, Error> {
    let build = "set up the client";
    let mut bearer = header::HeaderValue::from_str(&format!("Bearer {}", key.0.expose_secret()))
        .map_err(|_| Error::new(build, Class::Refused, "the key cannot be sent in a header"))?;
    bearer.set_sensitive(true);
    let mut headers = header::HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
    if let Some(organization) = organization {
        let organization = header::HeaderValue::from_str(organization)
            .map_err(|_| Error::new(build, Class::Refused, "the organisation cannot be sent in a header"))?;
        headers.insert(ORGANIZATION, organization);
    }
    reqwest::Client::builder()
        .user_agent(concat!("daytona-controller/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .connect_timeout(timeouts.connect)
        .read_timeout(timeouts.idle)
        .pool_idle_timeout(Duration::from_secs(30))
        // The key must not follow a redirect, and a repeated POST may be a second sandbox.
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        .build()
        .map_err(|e| Error::from_connection(build, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_trimmed_checked_and_never_shown() {
        let key = Key::new("dtn_0123\n").unwrap();
        assert_eq!(key.fingerprint(), Key::new("dtn_0123").unwrap().fingerprint());
        assert_eq!(key.fingerprint().len(), 32);
        assert!(!format!("{key:?}").contains("dtn_0123"));
        assert!(Key::new("\n").is_err() && Key::new("a b").is_err() && Key::new("ä").is_err());
    }

    #[test]
    fn a_client_is_shared_per_url_and_key_and_shows_no_key() {
        let timeouts =
            Timeouts { connect: Duration::from_secs(1), request: Duration::from_secs(1), idle: Duration::from_secs(1) };
        let clients = Clients::new(timeouts, Leadership::of_one());
        let endpoint =
            Endpoint { api_url: Url::parse("https://daytona.example/api").unwrap(), toolbox_origins: Vec::new() };
        let key = Key::new("dtn_secret").unwrap();
        let one = clients.get(&endpoint, &key, None).unwrap();
        assert!(Arc::ptr_eq(&one, &clients.get(&endpoint, &key, None).unwrap()));
        assert!(!Arc::ptr_eq(&one, &clients.get(&endpoint, &Key::new("dtn_other").unwrap(), None).unwrap()));
        let named = clients.get(&endpoint, &key, Some("org")).unwrap();
        assert!(!Arc::ptr_eq(&one, &named) && Arc::ptr_eq(&one.budget, &named.budget));
        assert!(clients.get(&endpoint, &key, Some("or\ng")).is_err());
        assert!(!format!("{one:?} {clients:?} {:?}", one.http).contains("dtn_secret"));
    }
}
