//! Reads what a command is to run with: its script, variables and standard input, from the manifest and from the
//! Secrets and `ConfigMaps` that it names. And what of its output must not be shown.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::{attempts::Prepared, context::Context, subject::lease_of};
use crate::{
    api::{
        CommandReason as Reason, EnvSource, EnvVar, FileSource, KeyRef, ObjectRef, SandboxCommand, SandboxCommandSpec,
        SourceKind, is_variable_name,
    },
    cluster::refs::{Source, source},
    plan::command::Inputs,
    shell::{Job, Redactor},
};

/// What was found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Ready(Arc<Prepared>),
    Missing(Reason, String),
    Unfit(String),
}

impl Found {
    /// As the decision sees it.
    pub(super) fn seen(&self) -> Inputs {
        match self {
            Self::Ready(prepared) => Inputs::Ready { secrets: prepared.secrets.clone() },
            Self::Missing(reason, message) => Inputs::Missing(*reason, message.clone()),
            Self::Unfit(message) => Inputs::Unfit(message.clone()),
        }
    }
}

/// Why it cannot be had.
enum Stop {
    Missing(Reason, String),
    Unfit(String),
    Kube(kube::Error),
}

impl From<kube::Error> for Stop {
    fn from(error: kube::Error) -> Self {
        Self::Kube(error)
    }
}

/// Whether anything that it runs with is secret.
pub(super) fn has_secrets(spec: &SandboxCommandSpec) -> bool {
    !spec.sources(SourceKind::Secret).is_empty()
}

/// Reads all that the command runs with.
pub(super) async fn resolve(command: &SandboxCommand, ctx: &Context) -> kube::Result<Found> {
    let mut reader = Reader::new(command, ctx);
    match reader.prepare(&command.spec, &Surroundings::of(command, ctx)).await {
        Ok(prepared) => Ok(Found::Ready(Arc::new(prepared))),
        Err(Stop::Missing(reason, message)) => Ok(Found::Missing(reason, message)),
        Err(Stop::Unfit(message)) => Ok(Found::Unfit(message)),
        Err(Stop::Kube(error)) => Err(error),
    }
}

/// What must not be shown of the output of a command that was started with these versions of its Secrets; `None` when
/// they are there no more.
pub(super) async fn redactor(
    command: &SandboxCommand,
    version: Option<&str>,
    ctx: &Context,
) -> kube::Result<Option<Redactor>> {
    let mut reader = Reader::new(command, ctx);
    match reader.prepare(&secrets_alone(&command.spec), &Surroundings::of(command, ctx).secrets_alone()).await {
        Err(Stop::Kube(error)) => Err(error),
        // Not all that it was started with is there.
        Err(Stop::Missing(..) | Stop::Unfit(_)) => Ok(None),
        Ok(prepared) => Ok((prepared.secrets.as_deref() == version).then_some(prepared.redactor)),
    }
}

/// The same command without what it reads elsewhere: that may be gone, and says nothing of what must not be shown.
fn secrets_alone(spec: &SandboxCommandSpec) -> SandboxCommandSpec {
    let mut spec = spec.clone();
    (spec.script, spec.script_from, spec.command) = (Some(String::new()), None, None);
    spec.env.retain(is_secret);
    spec.env_from.retain(|source| source.secret_ref.is_some());
    spec.stdin = spec.stdin.filter(|stdin| stdin.secret_key_ref.is_some());
    spec
}

fn is_secret(variable: &EnvVar) -> bool {
    variable.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some())
}

/// What the lease has its commands run in, unless they say otherwise.
#[derive(Default)]
struct Surroundings {
    env: Vec<EnvVar>,
    env_from: Vec<EnvSource>,
    working_dir: Option<String>,
    /// The Secrets that the lease brings into the sandbox as files: name, and which key if not all.
    filed: Vec<(String, Option<String>)>,
}

impl Surroundings {
    fn of(command: &SandboxCommand, ctx: &Context) -> Self {
        let Some(lease) = lease_of(command, ctx) else { return Self::default() };
        let spec = &lease.spec;
        let filed = spec.files.iter().filter_map(|mapping| match mapping.source() {
            FileSource::Key(SourceKind::Secret, key) => Some((key.name.clone(), Some(key.key.clone()))),
            FileSource::Whole(SourceKind::Secret, object) => Some((object.name.clone(), None)),
            _ => None,
        });
        Self {
            env: spec.env.clone(),
            env_from: spec.env_from.clone(),
            working_dir: spec.working_dir.clone(),
            filed: filed.collect(),
        }
    }

    fn secrets_alone(mut self) -> Self {
        self.env.retain(is_secret);
        self.env_from.retain(|source| source.secret_ref.is_some());
        self
    }
}

/// Reads each object once.
struct Reader<'a> {
    ctx: &'a Context,
    namespace: String,
    known: HashMap<(SourceKind, String), Option<Source>>,
    /// The secret values that were taken.
    values: Vec<Vec<u8>>,
    /// Which of them: name and version of the Secret, and what of it.
    taken: BTreeSet<String>,
}

impl<'a> Reader<'a> {
    fn new(command: &SandboxCommand, ctx: &'a Context) -> Self {
        Self {
            ctx,
            namespace: command.namespace().unwrap_or_default(),
            known: HashMap::new(),
            values: Vec::new(),
            taken: BTreeSet::new(),
        }
    }

    async fn prepare(&mut self, spec: &SandboxCommandSpec, lease: &Surroundings) -> Result<Prepared, Stop> {
        let script = match (&spec.script, &spec.command, &spec.script_from) {
            (Some(script), _, _) => script.clone().into_bytes(),
            (_, Some(words), _) => Job::argv(words).map_err(|unfit| Stop::Unfit(unfit.to_string()))?,
            (_, _, Some(from)) => {
                let key = &from.config_map_key_ref;
                let key = KeyRef { name: key.name.clone(), key: key.key.clone(), optional: false };
                self.key(SourceKind::ConfigMap, &key).await?.unwrap_or_default()
            }
            (None, None, None) => return Err(Stop::Unfit("neither script, scriptFrom nor command is set".to_owned())),
        };
        let job = Job {
            script,
            interpreter: spec.shell.clone().unwrap_or_default(),
            working_dir: spec.working_dir.clone().or_else(|| lease.working_dir.clone()),
            env: self.variables(spec, lease).await?.into_iter().collect(),
            stdin: self.stdin(spec).await?,
            persist: spec.shell_state == crate::api::ShellState::Persist,
            secret: false,
        };
        let job = Job { secret: self.version().is_some(), ..job };
        self.take_filed(lease).await?;
        let secrets = self.version();
        job.check().map_err(|unfit| Stop::Unfit(unfit.to_string()))?;
        Ok(Prepared { job, redactor: Redactor::new(std::mem::take(&mut self.values)), secrets })
    }

    /// The environment; a later source wins, a variable of its own over all sources, and a command over its lease.
    async fn variables(
        &mut self,
        spec: &SandboxCommandSpec,
        lease: &Surroundings,
    ) -> Result<BTreeMap<String, Vec<u8>>, Stop> {
        let mut all = BTreeMap::new();
        for (env_from, env) in [(&lease.env_from, &lease.env), (&spec.env_from, &spec.env)] {
            for from in env_from {
                all.extend(self.all_keys(from).await?);
            }
            for variable in env {
                if let Some(value) = self.variable(variable).await? {
                    all.insert(variable.name.clone(), value);
                }
            }
        }
        Ok(all)
    }

    /// Takes the values that the command can read in files, so that they are not shown either.
    async fn take_filed(&mut self, lease: &Surroundings) -> Result<(), Stop> {
        for (name, key) in &lease.filed {
            self.note(SourceKind::Secret, name, key.as_deref().unwrap_or("*")).await?;
            let optional = ObjectRef { name: name.clone(), optional: true };
            let Some(secret) = self.object(SourceKind::Secret, &optional).await? else { continue };
            let all = secret.data.iter().filter(|(of, _)| key.as_ref().is_none_or(|key| key == *of));
            let values: Vec<Vec<u8>> = all.map(|(_, value)| value.clone()).collect();
            self.values.extend(values);
        }
        Ok(())
    }

    async fn variable(&mut self, variable: &EnvVar) -> Result<Option<Vec<u8>>, Stop> {
        let from = variable.value_from.as_ref();
        match (&variable.value, from.and_then(|f| f.secret_key_ref.as_ref()), from) {
            (Some(value), _, _) => Ok(Some(value.clone().into_bytes())),
            (_, Some(key), _) => self.key(SourceKind::Secret, key).await,
            (_, _, Some(from)) => match &from.config_map_key_ref {
                Some(key) => self.key(SourceKind::ConfigMap, key).await,
                None => Ok(None),
            },
            (None, None, None) => Ok(None),
        }
    }

    /// All keys that can be variables. As with a pod, the others are left out.
    async fn all_keys(&mut self, from: &EnvSource) -> Result<BTreeMap<String, Vec<u8>>, Stop> {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let (kind, object) = match (&from.secret_ref, &from.config_map_ref) {
            (Some(object), _) => (SourceKind::Secret, object),
            (None, Some(object)) => (SourceKind::ConfigMap, object),
            (None, None) => return Ok(BTreeMap::new()),
        };
        self.note(kind, &object.name, &format!("{prefix}*")).await?;
        let Some(source) = self.object(kind, object).await? else { return Ok(BTreeMap::new()) };
        let named = source.data.iter().map(|(key, value)| (format!("{prefix}{key}"), value.clone()));
        let all: BTreeMap<String, Vec<u8>> = named.filter(|(name, _)| is_variable_name(name)).collect();
        if kind == SourceKind::Secret {
            self.values.extend(all.values().cloned());
        }
        Ok(all)
    }

    async fn stdin(&mut self, spec: &SandboxCommandSpec) -> Result<Option<Vec<u8>>, Stop> {
        let Some(stdin) = &spec.stdin else { return Ok(None) };
        match (&stdin.value, &stdin.secret_key_ref, &stdin.config_map_key_ref) {
            (Some(text), _, _) => Ok(Some(text.clone().into_bytes())),
            (_, Some(key), _) => self.key(SourceKind::Secret, key).await,
            (_, _, Some(key)) => self.key(SourceKind::ConfigMap, key).await,
            (None, None, None) => Ok(None),
        }
    }

    /// A value; `None` when it is optional and not there.
    async fn key(&mut self, kind: SourceKind, key: &KeyRef) -> Result<Option<Vec<u8>>, Stop> {
        let object = ObjectRef { name: key.name.clone(), optional: key.optional };
        self.note(kind, &key.name, &format!("/{}", key.key)).await?;
        let Some(source) = self.object(kind, &object).await? else { return Ok(None) };
        match source.data.get(&key.key).cloned() {
            Some(value) => {
                if kind == SourceKind::Secret {
                    self.values.push(value.clone());
                }
                Ok(Some(value))
            }
            None if key.optional => Ok(None),
            None => {
                let (kind, name) = (kind.as_str(), &key.name);
                Err(Stop::Unfit(format!("{kind} {name:?} has no key {:?}; add it and create another command", key.key)))
            }
        }
    }

    async fn object(&mut self, kind: SourceKind, object: &ObjectRef) -> Result<Option<&Source>, Stop> {
        let place = (kind, object.name.clone());
        if !self.known.contains_key(&place) {
            let found = source(&self.ctx.client, &self.namespace, kind, &object.name).await?;
            self.known.insert(place.clone(), found);
        }
        match self.known.get(&place) {
            Some(Some(source)) => Ok(Some(source)),
            _ if object.optional => Ok(None),
            _ => {
                let reason = match kind {
                    SourceKind::Secret => Reason::SecretNotFound,
                    SourceKind::ConfigMap => Reason::ConfigMapNotFound,
                };
                let (kind, name) = (kind.as_str(), &object.name);
                Err(Stop::Missing(reason, format!("waiting for {kind} {name:?} in this namespace; create it")))
            }
        }
    }

    /// Notes what is taken of a Secret. Its lease may take something else tomorrow, of the same version of it.
    async fn note(&mut self, kind: SourceKind, name: &str, what: &str) -> Result<(), Stop> {
        if kind == SourceKind::Secret {
            let optional = ObjectRef { name: name.to_owned(), optional: true };
            let version = self.object(kind, &optional).await?.map_or("-", |secret| secret.version.as_str()).to_owned();
            self.taken.insert(format!("{name}={version}{what}"));
        }
        Ok(())
    }

    /// Which versions of its Secrets were read, and what of them; no value can be learned from it.
    fn version(&self) -> Option<String> {
        let all: Vec<&str> = self.taken.iter().map(String::as_str).collect();
        (!all.is_empty()).then(|| {
            Sha256::digest(all.join("\n")).iter().take(16).fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        })
    }
}
