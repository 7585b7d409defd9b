//! What TLS needs beside the URL: authorities to trust, and a provider of cryptography.

use ::redis::{Client, ConnectionAddr, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};

use crate::error::StoreError;

/// Returns the client that trusts the authorities of `pem` alone.
pub(super) fn trusting(client: &Client, pem: Vec<u8>) -> Result<Client, StoreError> {
    if !matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. }) {
        return Err(StoreError::new(
            "root certificates are for TLS; let the URL begin with rediss:// instead of redis://",
        ));
    }
    if !pem.windows(BEGIN.len()).any(|part| part == BEGIN) {
        return Err(StoreError::new(
            "the root certificates hold no certificate in PEM; give the text that begins with -----BEGIN CERTIFICATE-----",
        ));
    }
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(pem) };
    Client::build_with_tls(client.get_connection_info().clone(), certificates)
        .map_err(|error| StoreError::caused_by("the root certificates cannot be read; give them in PEM", error))
}

const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Makes sure that TLS has a provider: without one, or with a choice of two, rustls panics when it connects.
pub(super) fn have_a_provider(client: &Client) {
    if matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
        && CryptoProvider::get_default().is_none()
    {
        // Somebody else may be quicker, which is as well.
        let _ = ring::default_provider().install_default();
    }
}
