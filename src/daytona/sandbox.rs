//! Calls to the control plane.

use std::collections::BTreeMap;

use reqwest::Method;

use super::{Client, Error, NewSandbox, Sandbox, Setting, budget::Limiter, call::Call, error::Class, model::Page};

/// Operation of [`Client::create_sandbox`].
pub const CREATE: &str = "create the sandbox";
/// Operation of [`Client::start_sandbox`].
pub const START: &str = "start the sandbox";

/// Sandboxes in a page of a list, and the most pages that are read of one.
const PAGE: &str = "100";
const MOST_PAGES: usize = 1000;

impl Client {
    /// Creates a sandbox. The answer may describe it as `creating`.
    ///
    /// # Errors
    /// [`Class::Conflict`] when the name is taken (perhaps by an earlier call whose answer was lost);
    /// [`Class::Refused`] for an unknown snapshot or an exhausted quota.
    pub async fn create_sandbox(&self, new: &NewSandbox) -> Result<Sandbox, Error> {
        self.fetch(Call::new(CREATE, Limiter::Create, Method::POST, self.url(&["sandbox"])).json(new)?).await
    }

    /// Looks a sandbox up by id or name. `None`: Daytona says that there is none for this key.
    pub async fn sandbox(&self, id_or_name: &str) -> Result<Option<Sandbox>, Error> {
        let call = Call::new("look at the sandbox", Limiter::Other, Method::GET, self.url(&["sandbox", id_or_name]));
        match self.fetch::<Sandbox>(call).await {
            Ok(sandbox) if sandbox.id == id_or_name || sandbox.name == id_or_name => Ok(Some(sandbox)),
            Ok(_) => Err(Error::new("look at the sandbox", Class::Unclear, "the answer is about another sandbox")),
            Err(e) if e.class == Class::Gone => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Looks a sandbox up in the list, which also shows those whose deletion failed: by id they answer 404.
    pub async fn listed_sandbox(&self, id: &str) -> Result<Option<Sandbox>, Error> {
        let mut url = self.url(&["sandbox"]);
        url.query_pairs_mut()
            .append_pair("id", id)
            .append_pair("includeErroredDeleted", "true")
            .append_pair("limit", "10");
        let page: Page = self.fetch(Call::new("list the sandbox", Limiter::Other, Method::GET, url)).await?;
        Ok(page.items.into_iter().find(|s| s.id == id))
    }

    /// All sandboxes with these labels, page after page. The list may be behind what is seen by id.
    ///
    /// # Errors
    /// [`Class::Unclear`] also when the list does not come to an end.
    pub async fn labelled_sandboxes(&self, labels: &[(&str, &str)]) -> Result<Vec<Sandbox>, Error> {
        const WHAT: &str = "list sandboxes by labels";
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let labels = serde_json::json!(labels).to_string();
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        for _ in 0..MOST_PAGES {
            let mut url = self.url(&["sandbox"]);
            // In this order nothing moves from one page to another.
            url.query_pairs_mut()
                .append_pair("labels", &labels)
                .append_pair("sort", "createdAt")
                .append_pair("order", "asc")
                .append_pair("limit", PAGE)
                .extend_pairs(cursor.as_ref().map(|cursor| ("cursor", cursor)));
            let page: Page = self.fetch(Call::new(WHAT, Limiter::Other, Method::GET, url)).await?;
            all.extend(page.items);
            match page.next_cursor.filter(|next| !next.is_empty()) {
                None => return Ok(all),
                next if next == cursor => break,
                next => cursor = next,
            }
        }
        Err(Error::new(WHAT, Class::Unclear, "the list does not come to an end"))
    }

    /// The organisation of this key, as far as a listed sandbox tells it.
    pub async fn organization(&self) -> Result<Option<String>, Error> {
        let page: Page = self.fetch(self.list_one()).await?;
        Ok(page.items.into_iter().next().and_then(|s| s.organization_id))
    }

    /// Asks for any one sandbox: the smallest question to which every key gets an answer.
    pub(super) fn list_one(&self) -> Call {
        let mut url = self.url(&["sandbox"]);
        url.query_pairs_mut().append_pair("limit", "1");
        Call::new("list sandboxes", Limiter::Other, Method::GET, url)
    }

    /// Starts a stopped or archived sandbox.
    pub async fn start_sandbox(&self, id: &str) -> Result<(), Error> {
        self.tell(START, Limiter::Lifecycle, id, "start").await
    }

    /// Asks for a sandbox to be stopped. One that Daytona deletes as soon as it is stopped is deleted instead.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), Error> {
        self.tell("stop the sandbox", Limiter::Lifecycle, id, "stop").await
    }

    /// Asks for a stopped sandbox to be moved to slower storage.
    pub async fn archive_sandbox(&self, id: &str) -> Result<(), Error> {
        self.tell("archive the sandbox", Limiter::Lifecycle, id, "archive").await
    }

    /// Asks for a sandbox to be brought back from its error.
    pub async fn recover_sandbox(&self, id: &str) -> Result<(), Error> {
        self.tell("recover the sandbox", Limiter::Lifecycle, id, "recover").await
    }

    /// Says that the sandbox is in use, so that it is not stopped for idleness.
    pub async fn keep_awake(&self, id: &str) -> Result<(), Error> {
        self.tell("keep the sandbox awake", Limiter::Other, id, "last-activity").await
    }

    async fn tell(&self, operation: &'static str, limiter: Limiter, id: &str, what: &str) -> Result<(), Error> {
        let url = self.url(&["sandbox", id, what]);
        self.send(Call::new(operation, limiter, Method::POST, url)).await.map(drop)
    }

    /// Sets something of a sandbox.
    pub async fn set(&self, id: &str, setting: &Setting) -> Result<(), Error> {
        let minutes = |operation, route: &str, minutes: &i32| {
            let url = self.url(&["sandbox", id, route, &minutes.to_string()]);
            Ok(Call::new(operation, Limiter::Other, Method::POST, url))
        };
        let call = match setting {
            Setting::AutoStop(after) => minutes("set when the sandbox is stopped", "autostop", after),
            Setting::AutoArchive(after) => minutes("set when the sandbox is archived", "autoarchive", after),
            Setting::AutoDelete(after) => minutes("set when the sandbox is deleted", "autodelete", after),
            Setting::Labels(labels) => {
                let url = self.url(&["sandbox", id, "labels"]);
                let body = serde_json::json!({ "labels": labels });
                Call::new("set the sandbox's labels", Limiter::Other, Method::PUT, url).json(&body)
            }
        };
        self.send(call?).await.map(drop)
    }

    /// Asks for a sandbox's deletion. Its success is not proof: look until it is gone.
    pub async fn delete_sandbox(&self, id: &str) -> Result<(), Error> {
        let url = self.url(&["sandbox", id]);
        self.send(Call::new("delete the sandbox", Limiter::Lifecycle, Method::DELETE, url)).await.map(drop)
    }
}
