//! A certificate authority for one control plane, made on the spot. Its key never leaves this process.

use std::net::{IpAddr, Ipv4Addr};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, Error, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// Signs the certificates of the apiserver and of its clients.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM.
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new() -> Result<Self, Error> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "dev control plane");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Self { issuer: CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)? })
    }

    /// The certificate that all others are checked against.
    pub(super) fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// For the apiserver on the loopback address.
    pub(super) fn server(&self) -> Result<Identity, Error> {
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()])?;
        parameters.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        parameters.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        self.sign(parameters, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a Kubernetes user: the common name is its name, the organisation its group (one at most:
    /// that is all that rcgen writes).
    pub(super) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, Error> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            parameters.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(parameters, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut parameters: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Identity, Error> {
        let key = KeyPair::generate()?;
        parameters.extended_key_usages = vec![usage];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = parameters.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}

/// The key pair that signs `ServiceAccount` tokens: private and public, both PEM.
pub(super) fn service_account_keys() -> Result<[String; 2], Error> {
    let key = KeyPair::generate()?;
    Ok([key.serialize_pem(), key.public_key_pem()])
}
