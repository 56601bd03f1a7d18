//! Composes client, controllers and server, and ends them together.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::http::{Method, Request};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    client::{Body, ClientBuilder},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, filter::FilterLayer, limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};

use crate::{
    cli,
    cluster::crds,
    controller::{self, Scope},
    daytona::Clients,
    leader::{Election, Lost},
    leadership::Leadership,
    server::{self, Readiness},
};

/// How long reconciles that are under way may take to end after a signal; shorter than a pod's grace period.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// Calls to the apiserver that wait for an answer at once, watches among them. Each needs a connection of its own: a
/// thousand commands that arrive together must not have a thousand of them made.
const KUBERNETES_CALLS: usize = 32;

/// How often CRDs that do not fit are looked at.
const CRD_LOOK: Duration = Duration::from_secs(5);

/// Why the controller cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments.
    #[error(transparent)]
    Arguments(#[from] cli::Invalid),
    /// The Kubernetes configuration.
    #[error("no Kubernetes API is configured: {0}; set KUBECONFIG, or run in a cluster with a ServiceAccount")]
    Configuration(#[from] kube::config::InferConfigError),
    /// The Kubernetes client.
    #[error("the Kubernetes client cannot be set up: {0}")]
    Client(#[from] kube::Error),
    /// Another process leads.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Signals or sockets.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
}

/// Runs the controller until SIGTERM or SIGINT, or until another one leads.
///
/// # Errors
/// When it cannot start, its server fails, or it no longer leads.
pub async fn run(arguments: &cli::Run) -> Result<(), Error> {
    let key = std::env::var("DAYTONA_API_KEY").ok();
    let mut config = arguments.config(key.as_deref())?;
    let leadership = if arguments.leader_elect { Leadership::of_several() } else { Leadership::of_one() };
    let client = kube_client(leadership.clone(), arguments.kubernetes_timeout, silence(arguments)).await?;
    if config.own_namespace.is_empty() {
        client.default_namespace().clone_into(&mut config.own_namespace);
    }
    let own_namespace = config.own_namespace.clone();
    let config = Arc::new(config);
    let clients = Arc::new(Clients::new(config.timeouts, leadership.clone()));

    let stop = CancellationToken::new();
    let address = arguments.health_addr;
    let bind = |e| Error::Io(format!("cannot listen on {address} (--health-addr)"), e);
    let listener = TcpListener::bind(address).await.map_err(bind)?;
    let signals = end_on_signal(stop.clone())?;

    let scopes: Vec<Scope> = match arguments.watch_namespace.as_slice() {
        [] => vec![Scope { namespace: None }],
        // Each once: two controllers for one namespace would work against each other.
        names => {
            let names: BTreeSet<&String> = names.iter().collect();
            names.into_iter().map(|n| Scope { namespace: Some(n.clone()) }).collect()
        }
    };
    let readiness = Readiness::after(scopes.len());
    let controllers = scopes.into_iter().map(|scope| {
        let readiness = readiness.clone();
        let listed = move || readiness.listed();
        controller::start(client.clone(), Arc::clone(&config), Arc::clone(&clients), scope, listed, stop.clone())
    });
    let controllers = until_ended(futures::future::join_all(controllers), &stop);
    let election =
        if arguments.leader_elect { Some(election(arguments, &own_namespace, leadership).await?) } else { None };
    let led = async {
        // Before it could take the lead from one that knows the CRDs as they are.
        if stop.run_until_cancelled(until_crds_fit(&client, &readiness)).await.is_none() {
            return Ok(());
        }
        match election {
            None => controllers.await,
            Some(election) => {
                readiness.stand_by();
                Box::pin(election.lead(|| readiness.lead(), controllers, &stop)).await?;
            }
        }
        Ok(())
    };
    let server = async {
        let served = server::serve(listener, readiness.clone(), stop.clone()).await;
        served.map_err(|e| Error::Io("the health server failed".to_owned(), e))
    };
    // The first failure ends the process.
    tokio::try_join!(led, server)?;
    signals.abort();
    tracing::info!("stopped");
    Ok(())
}

/// Both controllers of all scopes; after a signal not for ever.
async fn until_ended<T>(controllers: impl Future<Output = T>, stop: &CancellationToken) {
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN).await;
    };
    tokio::select! {
        _ = controllers => {}
        () = deadline => tracing::warn!("some reconciles did not end in time; what they did is found again at the next start"),
    }
}

/// Waits until the apiserver keeps all that this version writes.
async fn until_crds_fit(client: &Client, readiness: &Readiness) {
    let mut told = None;
    loop {
        let lacks = match crds::lacking(client).await {
            Ok(None) => break,
            Ok(Some(lacks)) => lacks,
            Err(error) if error.is_forbidden() => {
                tracing::warn!(%error, "going on without having looked at them");
                break;
            }
            // It may be back in a moment.
            Err(error) => {
                tracing::warn!(%error, "the CRDs could not be looked at; it is tried again");
                readiness.wait_for(Some(error.to_string()));
                tokio::time::sleep(CRD_LOOK).await;
                continue;
            }
        };
        if told.as_ref() != Some(&lacks) {
            tracing::error!("{lacks}");
            readiness.wait_for(Some(lacks.clone()));
            told = Some(lacks);
        }
        tokio::time::sleep(CRD_LOOK).await;
    }
    readiness.wait_for(None);
}

/// A watch in which nothing happens tells nothing until it ends.
fn silence(arguments: &cli::Run) -> Duration {
    arguments.watch_timeout + arguments.kubernetes_timeout
}

async fn election(arguments: &cli::Run, namespace: &str, leadership: Leadership) -> Result<Election, Error> {
    // A client of its own: a thousand calls of the controllers must not make it late.
    let client = Client::try_from(kube_config(silence(arguments)).await?)?;
    let leases = Api::namespaced(client, namespace);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (name, duration) = (&arguments.leader_elect_lease_name, arguments.leader_elect_lease_duration);
    Ok(Election::new(leases, name, host.trim(), duration, leadership, system_time))
}

#[allow(clippy::disallowed_methods, reason = "this is where the time comes from")]
fn system_time() -> Timestamp {
    Timestamp::now()
}

/// `silence` is for how long a connection may tell nothing while something is asked of it.
async fn kube_config(silence: Duration) -> Result<kube::Config, Error> {
    let mut config = kube::Config::infer().await?;
    config.connect_timeout = Some(Duration::from_secs(10));
    // The answer's time-out ends with its headers: a list whose rest never comes would hold up everything.
    config.read_timeout = Some(silence);
    config.reset_reader_on_write = true;
    // A hidden retry may create twice, and holds a reconcile for minutes; the requeue table decides instead.
    config.default_retry = false;
    Ok(config)
}

/// The controllers' client, through which nothing is changed by a process that does not lead. `answer` is how long a call
/// may wait for its answer, so that a dead connection keeps none of the places.
async fn kube_client(leadership: Leadership, answer: Duration, silence: Duration) -> Result<Client, Error> {
    let gate = FilterLayer::new(move |request: Request<Body>| {
        let allowed = if request.method() == Method::GET { Ok(()) } else { leadership.check() };
        allowed.map(|()| request).map_err(BoxError::from)
    });
    let (limit, timeout) = (ConcurrencyLimitLayer::new(KUBERNETES_CALLS), TimeoutLayer::new(answer));
    Ok(ClientBuilder::try_from(kube_config(silence).await?)?
        .with_layer(&gate)
        .with_layer(&timeout)
        .with_layer(&limit)
        .build())
}

/// The first signal lets reconciles end; the second ends the process.
fn end_on_signal(stop: CancellationToken) -> Result<tokio::task::JoinHandle<()>, Error> {
    let listen = |kind| signal(kind).map_err(|e| Error::Io("cannot listen for signals".to_owned(), e));
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(tokio::spawn(async move {
        for signals in 0.. {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            if signals > 0 {
                std::process::exit(130);
            }
            tracing::info!("stopping");
            stop.cancel();
        }
    }))
}
