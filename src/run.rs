//! Composes client, controllers and server, and ends them together.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::client::ClientBuilder;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tower::{limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};

use crate::{
    cli,
    controller::{self, Scope},
    daytona::Clients,
    server::{self, Readiness},
};

/// How long reconciles that are under way may take to end after a signal; shorter than a pod's grace period.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// Calls to the apiserver that wait for an answer at once, watches among them. Each needs a connection of its own: a
/// thousand commands that arrive together must not have a thousand of them made.
const KUBERNETES_CALLS: usize = 32;

/// How long one of them may wait, so that a dead connection keeps none of these places. The apiserver itself gives up
/// after as long.
const KUBERNETES_ANSWER: Duration = Duration::from_mins(1);

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
    /// Signals or sockets.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
}

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, or its server fails.
pub async fn run(arguments: &cli::Run) -> Result<(), Error> {
    let key = std::env::var("DAYTONA_API_KEY").ok();
    let config = Arc::new(arguments.config(key.as_deref())?);
    let client = kube_client().await?;
    let clients = Arc::new(Clients::new(config.timeouts));

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
    let controllers = futures::future::join_all(controllers);
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN).await;
    };
    let server = server::serve(listener, readiness.clone(), stop.clone());
    tokio::select! {
        (_, outcome) = async { tokio::join!(controllers, server) } => {
            outcome.map_err(|e| Error::Io("the health server failed".to_owned(), e))?;
        }
        () = deadline => tracing::warn!("some reconciles did not end in time; what they did is found again at the next start"),
    }
    signals.abort();
    tracing::info!("stopped");
    Ok(())
}

async fn kube_client() -> Result<kube::Client, Error> {
    let mut config = kube::Config::infer().await?;
    config.connect_timeout = Some(Duration::from_secs(10));
    // A hidden retry may create twice, and holds a reconcile for minutes; the requeue table decides instead.
    config.default_retry = false;
    let (limit, timeout) = (ConcurrencyLimitLayer::new(KUBERNETES_CALLS), TimeoutLayer::new(KUBERNETES_ANSWER));
    Ok(ClientBuilder::try_from(config)?.with_layer(&timeout).with_layer(&limit).build())
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
