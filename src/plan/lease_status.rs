//! What a lease's status says, built up while a decision is made.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use kube::ResourceExt;

use super::{
    abandon::WayOut,
    escrow::{Escrow, refused},
    expiry::is_ending,
    files::Filed,
    lease_failure::refusal,
    lease_seen::{Credentials, Observed, Remote, session_id},
};
use crate::{
    api::{
        CommandGauges, Condition, ConnectionStatus, LeaseCondition as Type, LeaseReason as Reason, REQUESTED_AT,
        SandboxLease, SandboxLeaseStatus, SandboxStatus, SessionStatus, Stamp, Truth, condition, cut, remove_condition,
        set_condition,
    },
    daytona::{CREATE, Class, Error, START, Sandbox},
};

/// Status, reason and message of a condition.
type Said = (Truth, Reason, String);

/// What a decision has to tell; becomes the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    connection: Option<ConnectionStatus>,
    sandbox: Option<SandboxStatus>,
    session: Option<SessionStatus>,
    workspace: Option<SessionStatus>,
    last_session_generation: Option<i64>,
    expiry_time: Option<Time>,
    expired_time: Option<Time>,
    pub(super) files: Filed,
    /// Whether commands go into a session.
    pub(super) sessions: bool,
    adopted: bool,
    ready: Option<Said>,
    credentials: Option<Said>,
    sandbox_ready: Option<Said>,
    session_ready: Option<Said>,
    pub(super) stalled: bool,
    blocked: Option<(Reason, String)>,
    way_out: WayOut,
}

impl Told {
    /// Starts from what is recorded and what was observed.
    pub(super) fn new(lease: &SandboxLease, observed: &Observed) -> Self {
        let recorded = lease.status.clone().unwrap_or_default();
        let mut connection = recorded.connection;
        let mut credentials = None;
        if let Credentials::Usable { fingerprint, .. } = &observed.credentials
            && matches!(observed.remote, Remote::Present(_) | Remote::Absent | Remote::FailedDeletion(_))
        {
            credentials = Some(accepted(&observed.escrow));
            // The key has just reached the sandbox (or proved its organisation): from now on it is the known one, but not
            // before a copy of it is kept, for that of the one before goes.
            if let Some(connection) =
                connection.as_mut().filter(|_| !matches!(observed.escrow, Escrow::Missing | Escrow::Unknown(_)))
            {
                connection.key_fingerprint.clone_from(fingerprint);
            }
        }
        Self {
            connection,
            sandbox: recorded.sandbox,
            session: recorded.session,
            workspace: recorded.workspace,
            last_session_generation: recorded.last_session_generation,
            expiry_time: recorded.expiry_time,
            expired_time: recorded.expired_time,
            files: Filed::new(lease, observed),
            sessions: lease.spec.use_sessions,
            adopted: lease.spec.sandbox.as_ref().is_some_and(|s| s.adopt.is_some()),
            ready: None,
            credentials,
            sandbox_ready: None,
            session_ready: None,
            stalled: false,
            blocked: None,
            way_out: WayOut::of(lease),
        }
    }

    /// Everything is as the spec asks.
    pub(super) fn ready(&mut self, reason: Reason, message: &str) {
        let truth = |up: bool| if up { Truth::True } else { Truth::False };
        let awake = reason == Reason::Ready;
        self.credentials.get_or_insert_with(|| accepted(&Escrow::NotWanted));
        self.ready = Some((Truth::True, reason, message.to_owned()));
        self.sandbox_ready = Some((truth(awake), reason, message.to_owned()));
        self.session_ready = Some((truth(awake), reason, message.to_owned()));
    }

    /// Says nothing that could contradict what stands there already. What keeps a lease from going is said always.
    pub(super) fn quiet(&mut self) {
        if self.blocked.is_none() {
            (self.ready, self.credentials) = (None, None);
        }
    }

    /// The sandbox runs, whatever becomes of the session.
    pub(super) fn sandbox_runs(&mut self) {
        self.sandbox_ready = Some((Truth::True, Reason::Ready, "the sandbox runs".to_owned()));
    }

    /// Not ready yet, and going on by itself.
    pub(super) fn waiting(&mut self, reason: Reason, message: &str) {
        self.ready = Some((Truth::False, reason, message.to_owned()));
    }

    /// Not ready, and nothing happens until a person or Daytona changes something.
    pub(super) fn failed(&mut self, reason: Reason, message: &str) {
        self.waiting(reason, message);
        self.sandbox_ready = Some((Truth::False, reason, message.to_owned()));
        self.session_ready = Some((Truth::False, reason, message.to_owned()));
        self.stalled = true;
    }

    /// The key is the problem.
    pub(super) fn credentials(&mut self, reason: Reason, message: &str) {
        self.waiting(reason, message);
        self.credentials = Some((Truth::False, reason, message.to_owned()));
        self.stalled = true;
    }

    /// What is recorded of the sandbox stays, whatever became of the last call.
    pub fn intended_still(&mut self, lease: &SandboxLease) {
        let recorded = lease.status.clone().unwrap_or_default();
        (self.sandbox, self.connection) = (recorded.sandbox, recorded.connection);
    }

    /// A call failed.
    pub fn error(&mut self, error: &Error) {
        let text = error.to_string();
        match error.class {
            Class::Unauthorized => {
                let message = format!(
                    "{text}; put a valid key where connection.apiKeySecretRef points (without one: into the \
                     controller's own DAYTONA_API_KEY)"
                );
                self.credentials(Reason::Unauthorized, &message);
            }
            Class::Throttled(_) => self.waiting(Reason::ApiThrottled, &throttled(error)),
            Class::Refused if error.operation == CREATE => {
                let (reason, message) = refusal(error);
                self.failed(reason, &message);
                // Refused for certain, so nothing was made. One that "failed to start" was made.
                if !error.message.contains("failed to start") {
                    (self.sandbox, self.connection) = (None, None);
                }
            }
            Class::Gone | Class::Conflict | Class::NotYet => self.waiting(Reason::Restoring, &text),
            Class::Refused if error.operation == START => {
                let (reason, message) = refusal(error);
                let reason = if reason == Reason::InvalidSpec { Reason::SandboxError } else { reason };
                self.failed(reason, &message);
            }
            // Of a question, a refusal makes no sense: something between us and Daytona gave the answer.
            Class::Refused | Class::Unavailable | Class::NotMade | Class::Unclear => {
                self.waiting(Reason::ApiUnreachable, &text);
            }
        }
    }

    /// The sandbox runs, but does not do what it must for commands to run in it.
    pub fn sandbox_disobeys(&mut self, message: &str) {
        self.waiting(Reason::SandboxError, message);
    }

    /// Daytona names a host for the sandbox's toolbox that the key may not go to.
    pub fn toolbox_not_allowed(&mut self, origin: &str, leaving: bool) {
        let message = format!(
            "Daytona serves this sandbox's toolbox at {origin}, which the controller's allow-list does not name for this \
             API; the cluster's administrator can add it: --allow-api-url URL={origin}"
        );
        if leaving {
            self.blocked(Reason::UrlNotAllowed, &message);
        } else {
            self.failed(Reason::UrlNotAllowed, &message);
        }
    }

    /// When the lease expires, and whether it has. What has expired stays so.
    pub(super) fn expiry(&mut self, at: Option<Timestamp>, expired: bool, now: Timestamp) {
        if self.expired_time.is_none() {
            self.expiry_time = at.map(whole_seconds);
            self.expired_time = expired.then(|| whole_seconds(now));
        }
    }

    /// The lease is going.
    pub(super) fn deleting(&mut self, message: &str) {
        let reason = if self.expired_time.is_some() { Reason::Expired } else { Reason::Deleting };
        let message = self.way_out.beside(message);
        self.waiting(reason, &message);
        self.sandbox_ready = Some((Truth::False, reason, message.clone()));
        self.session_ready = Some((Truth::False, reason, message));
    }

    /// Daytona has said that the sandbox is gone.
    pub(super) fn sandbox_gone(&mut self) {
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.state = Some("destroyed".to_owned());
        }
    }

    /// The lease cannot go.
    pub(super) fn blocked(&mut self, reason: Reason, message: &str) {
        self.deleting(message);
        self.blocked = Some((reason, self.way_out.after(message)));
    }

    /// A call that the release needs failed.
    pub fn blocked_by(&mut self, error: &Error, object: &str) {
        let (reason, then) = match error.class {
            Class::Unauthorized => (Reason::Unauthorized, "; put a valid key into the Secret"),
            Class::Throttled(_) => {
                let message = format!("{} ({object}); it is tried again", throttled(error));
                return self.blocked(Reason::ApiThrottled, &message);
            }
            // Daytona is busy with it: no reason to call for help.
            Class::Conflict => return self.deleting(&format!("{error} ({object}); it is tried again")),
            Class::Refused => (
                Reason::SandboxError,
                "; it is tried again. Bring it in Daytona into a state in which that can be done, or change \
                 spec.reclaimPolicy",
            ),
            _ => (Reason::ApiUnreachable, "; it is tried again until Daytona says that it is gone"),
        };
        self.blocked(reason, &format!("{error} ({object}){then}"));
    }

    /// Records the intent to create the sandbox, or to take one over: its name, and where.
    pub(super) fn intend(&mut self, observed: &Observed) {
        self.sandbox = Some(SandboxStatus { name: observed.name.clone(), ..SandboxStatus::default() });
        self.files = Filed::default();
        if let Credentials::Usable { api_url, fingerprint } = &observed.credentials {
            self.connection = Some(ConnectionStatus {
                api_url: api_url.clone(),
                organization_id: None,
                key_fingerprint: fingerprint.clone(),
            });
        }
    }

    /// What Daytona says of the sandbox.
    pub(super) fn sandbox(&mut self, sandbox: &Sandbox) {
        #[allow(clippy::cast_possible_truncation, reason = "a float cast saturates")]
        let minutes = |m: Option<f64>| m.map(|m| m as i32);
        let status = self.sandbox.get_or_insert_with(SandboxStatus::default);
        status.id = Some(cut(&sandbox.id, 128));
        if status.name.is_empty() || self.adopted {
            status.name = cut(&sandbox.name, 256);
        }
        status.state = Some(cut(sandbox.state.as_str(), 64));
        status.target = sandbox.target.as_deref().map(|t| cut(t, 128));
        status.creation_time = sandbox.created_at.as_deref().and_then(|t| t.parse().ok()).map(whole_seconds);
        status.auto_stop_minutes = minutes(sandbox.auto_stop_interval);
        status.auto_archive_minutes = minutes(sandbox.auto_archive_interval);
        status.auto_delete_minutes = minutes(sandbox.auto_delete_interval);
        if let (Some(connection), Some(organization)) = (&mut self.connection, &sandbox.organization_id) {
            connection.organization_id = Some(cut(organization, 128));
        }
    }

    /// The directories of the sandbox, once it was asked for them.
    pub fn directories(&mut self, work_dir: &str, home_dir: &str) {
        if let Some(sandbox) = &mut self.sandbox {
            (sandbox.work_dir, sandbox.home_dir) = (Some(cut(work_dir, 1024)), Some(cut(home_dir, 1024)));
        }
    }

    /// Records the intent to make a new place for commands: a session, or a workspace alone.
    pub fn renew_session(&mut self, lease: &SandboxLease) {
        let here = self.session.as_ref().or(self.workspace.as_ref()).map(|place| place.generation);
        let generation = here.max(self.last_session_generation).unwrap_or(0) + 1;
        self.last_session_generation = Some(generation);
        let place = SessionStatus { id: session_id(lease, generation), generation, creation_time: None };
        *if self.sessions { &mut self.session } else { &mut self.workspace } = Some(place);
    }

    /// The session's shell has answered, or the workspace is there.
    pub fn session_lives(&mut self, now: Timestamp) {
        if let Some(place) = self.session.as_mut().or(self.workspace.as_mut()) {
            place.creation_time.get_or_insert_with(|| whole_seconds(now));
        }
        self.serving();
    }

    /// Proved: no session of ours is left, nor a process that needs the workspace.
    pub(super) fn session_gone(&mut self) {
        (self.session, self.workspace) = (None, None);
    }
}

/// Whether the status says that something failed, which a new try alone does not change.
#[must_use]
pub fn is_failing(lease: &SandboxLease) -> bool {
    let Some(status) = &lease.status else { return false };
    let failures = [
        Reason::SandboxError,
        Reason::SnapshotNotFound,
        Reason::Unauthorized,
        Reason::UrlNotAllowed,
        Reason::QuotaExceeded,
        Reason::ApiThrottled,
        Reason::ApiUnreachable,
        Reason::InvalidSpec,
        Reason::EscrowFailed,
    ];
    if is_ending(lease) {
        // What failed while it was wanted is no news of its going.
        return condition(&status.conditions, Type::CleanupBlocked.as_str()).is_some();
    }
    let ready = condition(&status.conditions, Type::Ready.as_str());
    ready.is_some_and(|c| c.status != "True" && failures.iter().any(|r| r.as_str() == c.reason))
}

/// The same whether Daytona refused the call or it was not made: what alternates would be a write each time.
fn throttled(error: &Error) -> String {
    format!("could not {}: Daytona asks for fewer calls (429)", error.operation)
}

fn accepted(escrow: &Escrow) -> Said {
    let message = "Daytona accepts the key";
    match escrow {
        Escrow::Refused(why) => (Truth::True, Reason::EscrowFailed, format!("{message}, but {}", refused(why))),
        Escrow::NotWanted | Escrow::Kept | Escrow::Missing | Escrow::Unknown(_) => {
            (Truth::True, Reason::Ready, message.to_owned())
        }
    }
}

fn whole_seconds(at: Timestamp) -> Time {
    // k8s-openapi writes whole seconds: anything finer would never equal what is read back.
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// The status that a lease is to have.
#[must_use]
pub fn status(lease: &SandboxLease, told: &Told, gauges: CommandGauges, now: Timestamp) -> SandboxLeaseStatus {
    let old = lease.status.clone().unwrap_or_default();
    let stamp = Stamp { generation: lease.metadata.generation, now };
    let requested_at = lease.annotations().get(REQUESTED_AT).map(|v| cut(v, 256));
    SandboxLeaseStatus {
        observed_generation: stamp.generation,
        conditions: conditions(old.conditions, told, stamp),
        mode: Some(if lease.spec.use_sessions { "Sessions" } else { "OneShot" }.to_owned()),
        connection: told.connection.clone(),
        sandbox: told.sandbox.clone(),
        session: told.session.clone(),
        workspace: told.workspace.clone(),
        last_session_generation: told.last_session_generation,
        expiry_time: told.expiry_time.clone(),
        expired_time: told.expired_time.clone(),
        writable_dirs: told.files.writable_dirs.clone(),
        files_digest: told.files.digest.clone(),
        commands: Some(gauges),
        last_handled_reconcile_at: requested_at.or(old.last_handled_reconcile_at),
    }
}

fn conditions(mut all: Vec<Condition>, told: &Told, stamp: Stamp) -> Vec<Condition> {
    let mut set = |type_: Type, (truth, reason, message): &Said| {
        set_condition(&mut all, type_.as_str(), *truth, reason.as_str(), message, stamp);
    };
    if let Some(said) = &told.credentials {
        set(Type::CredentialsValid, said);
    }
    if let Some(ready) = &told.ready {
        set(Type::Ready, ready);
        set(Type::SandboxReady, told.sandbox_ready.as_ref().unwrap_or(ready));
        if told.sessions {
            set(Type::SessionReady, told.session_ready.as_ref().unwrap_or(ready));
        }
        let (truth, reason, message) = ready.clone();
        let abnormal = [
            (Type::Stalled, told.stalled.then(|| (reason, message.clone()))),
            (Type::Reconciling, (truth != Truth::True && !told.stalled).then_some((reason, message))),
            (Type::CleanupBlocked, told.blocked.clone()),
        ];
        for (type_, said) in abnormal {
            match said {
                Some((reason, message)) => {
                    set_condition(&mut all, type_.as_str(), Truth::True, reason.as_str(), &message, stamp);
                }
                None => remove_condition(&mut all, type_.as_str()),
            }
        }
    }
    for condition in &mut all {
        condition.observed_generation = stamp.generation;
    }
    all
}
