//! One HTTP client per API URL and key, and the one function through which every call goes.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use reqwest::{
    Method, header,
    multipart::{Form, Part},
    redirect,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tracing::Instrument;
use url::Url;

use crate::leadership::Leadership;

use super::{
    budget::{Budget, Limiter, retry_after},
    error::{Class, Error},
};

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
pub struct Client {
    http: reqwest::Client,
    endpoint: Endpoint,
    key: Key,
    fingerprint: String,
    timeouts: Timeouts,
    leadership: Leadership,
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

/// The clients in use, one per URL and key, so that all leases with the same key share one budget.
#[derive(Debug)]
pub struct Clients {
    timeouts: Timeouts,
    leadership: Leadership,
    known: Mutex<HashMap<Place, Weak<Client>>>,
}

impl Clients {
    /// No clients yet. None of them makes a call while this process does not lead.
    #[must_use]
    pub fn new(timeouts: Timeouts, leadership: Leadership) -> Self {
        Self { timeouts, leadership, known: Mutex::default() }
    }

    /// The client for this endpoint and key, and for an organisation where one is named; dropped when nobody uses it any more.
    ///
    /// # Errors
    /// When the TLS backend or its root certificates cannot be set up, or the organisation is none.
    pub fn get(&self, endpoint: &Endpoint, key: &Key, organization: Option<&str>) -> Result<Arc<Client>, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, client| client.strong_count() > 0);
        let place = (endpoint.clone(), key.digest(), organization.map(str::to_owned));
        if let Some(client) = known.get(&place).and_then(Weak::upgrade) {
            return Ok(client);
        }
        // Daytona counts by key, whatever organisation is named beside it.
        let same = known.iter().find(|((other, digest, _), _)| other == endpoint && *digest == place.1);
        let budget = same.and_then(|(_, client)| Some(Arc::clone(&client.upgrade()?.budget)));
        let budget = budget.unwrap_or_else(|| Arc::new(Budget::new()));
        let http = http(key, organization, self.timeouts)?;
        let client = Arc::new(Client {
            http,
            endpoint: endpoint.clone(),
            key: key.clone(),
            fingerprint: key.fingerprint(),
            timeouts: self.timeouts,
            leadership: self.leadership.clone(),
            budget,
        });
        known.insert(place, Arc::downgrade(&client));
        Ok(client)
    }
}

/// What a call carries.
pub(super) enum Body {
    None,
    Json(serde_json::Value),
    /// Paths and contents of files.
    Files(Vec<(String, Vec<u8>)>),
}

/// One call, before it is made.
pub(super) struct Call {
    pub(super) operation: &'static str,
    pub(super) limiter: Limiter,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Body,
    /// How long the server may hold the answer back on purpose.
    pub(super) held: Duration,
    /// Another limit than the usual one, for a call that should be answered soon or not at all.
    pub(super) limit: Option<Duration>,
    /// Whether the body of a successful answer is of interest.
    pub(super) with_body: bool,
    /// Whether it is no use of the sandbox, and must not keep it awake.
    pub(super) unnoticed: bool,
}

impl Call {
    pub(super) fn new(operation: &'static str, limiter: Limiter, method: Method, url: Url) -> Self {
        Self {
            operation,
            limiter,
            method,
            url,
            body: Body::None,
            held: Duration::ZERO,
            limit: None,
            with_body: true,
            unnoticed: false,
        }
    }

    pub(super) fn json(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_value(body)
            .map_err(|e| Error::new(self.operation, Class::Refused, format!("the request cannot be written: {e}")))?;
        self.body = Body::Json(body);
        Ok(self)
    }

    pub(super) fn files(mut self, files: Vec<(String, Vec<u8>)>) -> Self {
        self.body = Body::Files(files);
        self
    }

    pub(super) fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn without_body(mut self) -> Self {
        self.with_body = false;
        self
    }

    pub(super) fn held(mut self, held: Duration) -> Self {
        self.held = held;
        self
    }
}

impl Client {
    /// Where its calls go.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
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
        serde_json::from_slice(&body)
            .map_err(|e| Error::new(operation, Class::Unclear, format!("the answer is not what was expected: {e}")))
    }

    /// Makes a call. The only place that touches the network.
    pub(super) async fn send(&self, call: Call) -> Result<Vec<u8>, Error> {
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
            leads.map_err(|e| Error::new(operation, Class::Unavailable, e.to_string()))?;
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

/// Daytona reads pairs of parts: the path, then the content.
fn form(files: Vec<(String, Vec<u8>)>) -> Form {
    files.into_iter().enumerate().fold(Form::new(), |form, (number, (path, content))| {
        let content = Part::bytes(content).file_name("file");
        form.text(format!("files[{number}].path"), path).part(format!("files[{number}].file"), content)
    })
}

/// A URL below `base`; each segment is percent-encoded.
pub(super) fn below(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
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

    #[test]
    fn a_path_segment_cannot_leave_its_place() {
        let base = Url::parse("https://daytona.example/api/").unwrap();
        assert_eq!(
            below(&base, &["sandbox", "a/../b?c#d"]).as_str(),
            "https://daytona.example/api/sandbox/a%2F..%2Fb%3Fc%23d"
        );
    }
}
