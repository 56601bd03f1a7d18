# syntax=docker/dockerfile:1
# The shipped image: one static binary and the certificate authorities that it trusts. Nothing else is in it.
#   docker build --tag daytona-controller:0.1.0 .

# The same Rust as rust-toolchain.toml; a test compares them.
FROM rust:1.95.0-bookworm AS build
# The pinned toolchain is the image's own: rust-toolchain.toml would fetch rustfmt and clippy as well.
ENV RUSTUP_TOOLCHAIN=1.95.0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates musl-tools \
    && rm -rf /var/lib/apt/lists/*
RUN rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    dev/build-release "$(uname -m)-unknown-linux-musl" \
    && install -D "target/$(uname -m)-unknown-linux-musl/release/daytona-controller" /image/daytona-controller

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /image/daytona-controller /usr/bin/daytona-controller
COPY LICENSE /LICENSE
# Where the TLS client looks for authorities; mount another file over it to trust your own.
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/bin/daytona-controller"]
CMD ["run"]
