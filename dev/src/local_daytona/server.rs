//! Connections, and what happens to every call before and after it is answered: the log, the faults,
//! the path that a refusal names.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Uri, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tower::ServiceExt;
use tracing::{debug, info};

use super::calls::{Calls, Subject};
use super::problem::Problem;
use super::service::Service;
use super::{Options, admin, control, processes, toolbox};
use crate::faults::{Cut, Rules};

const TICK: Duration = Duration::from_millis(100);
const REAP_EVERY: u32 = 20;

/// Why the local Daytona cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It would be reachable from outside this machine.
    #[error("refusing to listen on {0}: only loopback, for what it runs is not contained")]
    NotLoopback(SocketAddr),
    /// A file, a process or a socket.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

struct Gate {
    service: Arc<Service>,
    calls: Arc<Calls>,
    rules: Arc<Rules>,
    router: Router,
}

/// Serves until TERM, INT or, if asked, the end of stdin; ends all it started before it returns.
pub async fn run(options: Options) -> Result<(), ServerError> {
    if !options.listen.ip().is_loopback() {
        return Err(ServerError::NotLoopback(options.listen));
    }
    let doing = |doing: String| move |source| ServerError::Io { doing, source };
    // That of the service: what is uploaded is 0644, whoever starts us.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let dir = directory(&options.dir).map_err(doing(format!("making {}", options.dir.display())))?;
    let listener =
        TcpListener::bind(options.listen).await.map_err(doing(format!("listening on {}", options.listen)))?;
    let address = listener.local_addr().map_err(doing("listening".to_owned()))?;
    let origin = format!("http://{address}");
    let (ready_file, until_eof) = (options.ready_file.clone(), options.exit_on_stdin_eof);
    let service = Service::new(options, &dir, origin.clone()).map_err(doing("starting".to_owned()))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(doing("signals".to_owned()))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(doing("signals".to_owned()))?;
    let gate = Arc::new(Gate::new(&service));
    if let Some(file) = ready_file {
        announce(&file, &format!("{origin}/api")).map_err(doing(format!("writing {}", file.display())))?;
    }
    info!(%origin, "serving");
    tokio::select! {
        () = accept(&listener, &gate) => {}
        () = tick(&service) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = stdin_eof(), if until_eof => {}
    }
    processes::kill_everything().await;
    Ok(())
}

impl Gate {
    fn new(service: &Arc<Service>) -> Self {
        let (calls, rules) = (Arc::new(Calls::default()), Arc::new(Rules::default()));
        let router =
            control::router(service).merge(toolbox::router(service)).merge(admin::router(service, &calls, &rules));
        Self { service: Arc::clone(service), calls, rules, router }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response, Cut> {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        self.service.evaluate();
        if !path.starts_with("/api/") && !path.starts_with("/toolbox/") {
            return Ok(self.apply(request.map(Body::new), &method, &path, None).await);
        }
        let seq = self.calls.arrived(&method, &path, self.service.clock.now());
        let (request, fired) = self.rules.meet(request).await?;
        let mut request = request.map(Body::new);
        let response = if let Some(fired) = fired {
            self.calls.meddled(seq, fired.rule);
            // Whoever handles the call fails in this way.
            if let Some(mode) = fired.effect.action.mode {
                request.extensions_mut().insert(mode);
            }
            let applied = async { Ok(self.apply(request, &method, &path, Some(seq)).await) };
            fired.effect.around(applied, |answer| answer.map(Body::from)).await?
        } else {
            self.apply(request, &method, &path, Some(seq)).await
        };
        self.calls.answered(seq, response.status().as_u16());
        Ok(response)
    }

    async fn apply(&self, request: Request<Body>, method: &str, path: &str, seq: Option<u64>) -> Response {
        let uri = request.uri().clone();
        let result: Result<Response, Infallible> = self.router.clone().oneshot(request).await;
        let mut response = result.unwrap_or_else(|never| match never {});
        if let (Some(seq), Some(subject)) = (seq, response.extensions().get::<Subject>()) {
            self.calls.is_about(seq, subject);
        }
        if let Some(problem) = response.extensions().get::<Problem>() {
            let mut refusal = problem.respond(method, seen_path(problem, &uri), self.service.clock.now());
            // What it was to carry besides; its empty body is not what is sent.
            response.headers_mut().remove(header::CONTENT_LENGTH);
            refusal.headers_mut().extend(std::mem::take(response.headers_mut()));
            response = refusal;
        }
        if path.starts_with("/api/") {
            response.headers_mut().insert("X-Daytona-Api-Version", HeaderValue::from_static("0.226.1"));
        }
        response
    }
}

/// The daemon sees the path without what the proxy takes off; the control plane names the query too.
fn seen_path<'a>(problem: &Problem, uri: &'a Uri) -> &'a str {
    let path = uri.path();
    match problem {
        Problem::Daemon(..) => {
            path.strip_prefix("/toolbox/").and_then(|rest| rest.find('/').and_then(|at| rest.get(at..))).unwrap_or(path)
        }
        _ => uri.path_and_query().map_or(path, |whole| whole.as_str()),
    }
}

async fn accept(listener: &TcpListener, gate: &Arc<Gate>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, Arc::clone(gate)));
            }
            // Out of file descriptors, for example: others may be given back.
            Err(error) => {
                debug!(%error, "cannot accept");
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, gate: Arc<Gate>) {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request: Request<Incoming>| {
        let gate = Arc::clone(&gate);
        async move { gate.answer(request).await }
    });
    if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).with_upgrades().await {
        debug!(%error, "connection ended");
    }
}

/// Time passes without calls too.
async fn tick(service: &Arc<Service>) {
    let mut count = 0_u32;
    loop {
        tokio::time::sleep(TICK).await;
        service.evaluate();
        count = count.wrapping_add(1);
        if count.is_multiple_of(REAP_EVERY) {
            service.processes.reap();
        }
    }
}

/// In a thread of its own: the end of the process must not wait for a read that never returns.
async fn stdin_eof() {
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
}

/// Real, because what lies below it is compared with real paths.
fn directory(dir: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    dir.canonicalize()
}

/// Whoever waits for the file must never read half of it.
fn announce(file: &Path, url: &str) -> io::Result<()> {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    std::fs::write(&part, url)?;
    std::fs::rename(part, file)
}
