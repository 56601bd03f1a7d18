//! The way of a call through the proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, Request, Response, header};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use reqwest::{Body, Certificate, Client, redirect, retry};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::debug;
use url::Url;

use super::delivery::{Answer, Delivery, Watched};
use super::{Arrived, CarriedOn, Deed, Kill, Phase, Record, watch};
use crate::faults::{Cut, Effect, When};

/// A call that the service may hold back on purpose is taken to be with it after so long. Any other is waited for.
const WITH_THE_SERVICE: Duration = Duration::from_millis(200);

/// What speaks of the connection, and not of the call.
const OF_THE_CONNECTION: [HeaderName; 4] = [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE];

/// The service behind the proxy.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Its origin; paths and queries are taken over from the caller.
    pub url: Url,
    /// The CA that an https service is trusted by, in PEM; the system's if none.
    pub ca_pem: Option<Vec<u8>>,
}

impl Upstream {
    /// A service that needs no CA of its own.
    #[must_use]
    pub fn new(url: Url) -> Self {
        Self { url, ca_pem: None }
    }

    pub(super) fn client(self) -> Result<Service, reqwest::Error> {
        // One connection per call: a call never meets a connection that the service is about to close.
        let builder = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .pool_max_idle_per_host(0);
        let builder = match self.ca_pem {
            Some(pem) => builder.tls_certs_only(Certificate::from_pem_bundle(&pem)?),
            None => builder,
        };
        Ok(Service { origin: self.url.origin().ascii_serialization(), http: builder.build()? })
    }
}

/// The way to the service.
#[derive(Debug, Clone)]
pub(super) struct Service {
    origin: String,
    http: Client,
}

/// Takes connections until it is dropped, and they with it.
pub(super) async fn serve(listener: TcpListener, service: Service, record: Arc<Record>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, caller)) => {
                    connections.spawn(connection(stream, caller, service.clone(), Arc::clone(&record)));
                }
                // Out of file descriptors, for example: others may be given back.
                Err(error) => {
                    debug!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, caller: SocketAddr, service: Service, record: Arc<Record>) {
    let _ = stream.set_nodelay(true);
    let Ok(own) = stream.local_addr() else { return };
    let delivery = Arc::new(Delivery::new(caller, own));
    let watched = Watched::new(stream, Arc::clone(&delivery));
    let answer =
        service_fn(move |request| answer(request, service.clone(), Arc::clone(&record), Arc::clone(&delivery)));
    let mut http = http1::Builder::new();
    http.auto_date_header(false);
    if let Err(error) = http.serve_connection(TokioIo::new(watched), answer).await {
        debug!(%error, "connection ended");
    }
}

async fn answer(
    request: Request<Incoming>,
    service: Service,
    record: Arc<Record>,
    delivery: Arc<Delivery>,
) -> Result<Response<Answer>, Cut> {
    let (request, read) = if record.naming.reads_body(request.method(), request.uri().path()) {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.map_err(|_| Cut)?.to_bytes();
        (Request::from_parts(parts, Either::Right(Full::new(bytes.clone()))), bytes)
    } else {
        (request.map(Either::Left), Bytes::new())
    };
    let arrived = record.arrived(request.method(), request.uri().path(), request.uri().query(), &read);
    let Arrived { number, deed, is_watch, may_be_held } = arrived;
    let way = Way { service, record, number };
    let own = |answer: Response<Bytes>| answer.map(|body| Answer::new(Body::from(body), None));
    match deed {
        Some(Deed::Kill(Phase::Before, kill)) => {
            // A task of its own: the caller's end drops this one.
            let _ = tokio::spawn(way.kill(Phase::Before, kill, delivery.caller())).await;
            Err(Cut)
        }
        Some(Deed::Kill(Phase::During, kill)) => way.during(request, may_be_held, kill, delivery.caller()).await,
        Some(Deed::Kill(Phase::After, kill)) => {
            let response = way.forward(request).await?;
            let caller = delivery.caller();
            delivery.then(move || drop(tokio::spawn(way.kill(Phase::After, kill, caller))));
            Ok(pass_on(response, Some(delivery)))
        }
        Some(Deed::Act(when, action)) => {
            if when == When::Before {
                way.met();
            }
            let passed = async {
                let response = way.forward(request).await?;
                way.met();
                Ok(pass_on(response, None))
            };
            Effect { when, action }.around(passed, own).await
        }
        Some(Deed::Late(when, by)) => way.late(request, when, by).await,
        Some(Deed::Watch(from, disturbance)) => {
            let response = way.forward(request).await?;
            let (status, mut headers) = (response.status(), response.headers().clone());
            strip(&mut headers);
            headers.remove(header::CONTENT_LENGTH);
            let body = watch::disturbed(response, from, disturbance, way.record, number);
            let mut answer = Response::new(Answer::new(body, None));
            (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
            Ok(answer)
        }
        None => {
            let (request, fired) = way.record.rules.meet(request).await?;
            let passed = async {
                let response = way.forward(request).await?;
                if is_watch {
                    let (parts, body) = Response::<Body>::from(response).into_parts();
                    let body = watch::counted(body, Arc::clone(&way.record), number);
                    return Ok(pass_on(Response::from_parts(parts, body), None));
                }
                Ok(pass_on(response, None))
            };
            let Some(fired) = fired else { return passed.await };
            way.record.meddled(number, fired.rule);
            fired.effect.around(passed, own).await
        }
    }
}

/// The way of one call.
#[derive(Clone)]
struct Way {
    service: Service,
    record: Arc<Record>,
    number: u64,
}

impl Way {
    /// Has the service answer; what it says is noted.
    async fn forward<B>(&self, request: Request<B>) -> Result<reqwest::Response, Cut>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let response = self.service.forward(request.map(Body::wrap)).await?;
        self.record.answered(self.number, response.status().as_u16());
        Ok(response)
    }

    fn met(&self) {
        self.record.met(self.number);
    }

    async fn kill(self, phase: Phase, kill: Kill, caller: SocketAddr) {
        self.record.killing(self.number);
        kill(caller).await;
        self.record.killed(self.number, phase);
        if phase != Phase::During {
            self.met();
        }
    }

    /// Has the caller killed once the service has answered, or holds the call; none gets to it.
    async fn during<B>(
        self,
        request: Request<B>,
        may_be_held: bool,
        kill: Kill,
        caller: SocketAddr,
    ) -> Result<Response<Answer>, Cut>
    where
        B: hyper::body::Body<Data = Bytes>,
    {
        let request = whole(request).await?;
        let (dead, is_dead) = tokio::sync::oneshot::channel::<()>();
        let carried_on = CarriedOn::new(&self.record);
        // A task of its own: a caller that gives up, and its end, drop this one.
        tokio::spawn(async move {
            let mut answer = std::pin::pin!(self.forward(request));
            let early = if may_be_held {
                tokio::time::timeout(WITH_THE_SERVICE, &mut answer).await.ok()
            } else {
                Some((&mut answer).await)
            };
            self.clone().kill(Phase::During, kill, caller).await;
            if !matches!(early, Some(Err(Cut))) {
                self.met();
            }
            drop(dead);
            let response = match early {
                Some(response) => response,
                None => answer.await,
            };
            if let Ok(response) = response {
                finish(response).await;
            }
            drop(carried_on);
        });
        let _ = is_dead.await;
        Err(Cut)
    }

    /// Carries the call to its end, whether its caller waits so long or not.
    async fn late<B>(self, request: Request<B>, when: When, by: Duration) -> Result<Response<Answer>, Cut>
    where
        B: hyper::body::Body<Data = Bytes>,
    {
        let request = whole(request).await?;
        let (answered, answer) = tokio::sync::oneshot::channel();
        let carried_on = CarriedOn::new(&self.record);
        tokio::spawn(async move {
            if when == When::Before {
                tokio::time::sleep(by).await;
            }
            let response = self.forward(request).await;
            if when == When::After {
                tokio::time::sleep(by).await;
            }
            if response.is_ok() {
                self.met();
            }
            if let Err(Ok(unheard)) = answered.send(response) {
                finish(unheard).await;
            }
            drop(carried_on);
        });
        Ok(pass_on(answer.await.map_err(|_| Cut)??, None))
    }
}

/// Read whole, so that the service gets it whole although the caller leaves.
async fn whole<B>(request: Request<B>) -> Result<Request<Full<Bytes>>, Cut>
where
    B: hyper::body::Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.map_err(|_| Cut)?.to_bytes();
    Ok(Request::from_parts(parts, Full::new(bytes)))
}

/// The service may finish, whatever it has to say.
async fn finish(mut response: reqwest::Response) {
    while let Ok(Some(_)) = response.chunk().await {}
}

impl Service {
    async fn forward(&self, request: Request<Body>) -> Result<reqwest::Response, Cut> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut headers = parts.headers;
        strip(&mut headers);
        let mut call = self.http.request(parts.method, format!("{}{path}", self.origin)).headers(headers);
        // Without a body none is announced either.
        if !body.is_end_stream() {
            call = call.body(body);
        }
        call.send().await.map_err(|error| {
            debug!(%error, path, "the service did not answer");
            Cut
        })
    }
}

fn pass_on(response: impl Into<Response<Body>>, delivery: Option<Arc<Delivery>>) -> Response<Answer> {
    let (mut parts, body) = response.into().into_parts();
    strip(&mut parts.headers);
    parts.extensions.clear();
    Response::from_parts(parts, Answer::new(body, delivery))
}

fn strip(headers: &mut HeaderMap) {
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
}
