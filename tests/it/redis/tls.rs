//! `rediss://`: the same store over TLS.

use std::error::Error;

use futures_util::future::join_all;
use tollgate::{
    Key, Limit, Limiter, Rule,
    store::{RedisStore, RedisStoreBuilder},
};

use super::{
    Duration, secret,
    server::{Server, free_port},
};

/// The authority that the servers' certificates are from, and one that nobody has one from.
const AUTHORITY: &str = include_str!("tls/authority.pem");
const STRANGER: &str = include_str!("tls/stranger.pem");

/// A server that shows a certificate.
struct Vouched {
    server: Server,
    port: u16,
    options: Vec<String>,
}

impl Vouched {
    /// A server that is whom the certificate in the file `name` is for.
    fn for_name(name: &str) -> Self {
        let port = free_port();
        let file = |name: &str| format!("{}/tests/it/redis/tls/{name}", env!("CARGO_MANIFEST_DIR"));
        let (certificate, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        let options = [
            ["--tls-port", &port.to_string()],
            ["--tls-auth-clients", "no"],
            ["--tls-cert-file", &certificate],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &file("authority.pem")],
        ];
        let options = options.as_flattened();
        let server = Server::start_with(options);
        Self { server, port, options: options.iter().map(ToString::to_string).collect() }
    }

    fn builder(&self) -> RedisStoreBuilder {
        let patient = Duration::from_secs(5);
        let url = format!("rediss://localhost:{}", self.port);
        RedisStore::builder(&url, secret()).deadline(patient).connect_timeout(patient)
    }
}

/// All that an error says, to its root.
fn whole(error: &dyn Error) -> String {
    let (mut said, mut next) = (error.to_string(), error.source());
    while let Some(error) = next {
        said = format!("{said}: {error}");
        next = error.source();
    }
    said
}

fn limiter(store: &RedisStore) -> Limiter<u64> {
    let rule = Rule::new("user", Limit::per_day(10), |id: &u64| Some(Key::from(*id)));
    Limiter::builder([rule]).store(store.clone()).build().unwrap()
}

#[tokio::test]
async fn decisions_go_over_tls_alone_and_together() {
    let vouched = Vouched::for_name("localhost");
    let store = vouched.builder().root_certificates(AUTHORITY).connect().await.unwrap();
    let limiter = limiter(&store);
    assert!(limiter.check(&1).await.unwrap().is_allowed());
    let decisions = join_all((0..12).map(|_| limiter.check(&1))).await;
    assert_eq!(decisions.iter().filter(|decision| decision.as_ref().unwrap().is_allowed()).count(), 9);
    // The counts are where everybody's are.
    assert_eq!(vouched.server.run::<Vec<String>>(&["KEYS", "*"]).len(), 1);
}

#[tokio::test]
async fn a_connection_over_tls_that_breaks_is_made_again() {
    let mut vouched = Vouched::for_name("localhost");
    let store = vouched.builder().root_certificates(AUTHORITY).connect().await.unwrap();
    let limiter = limiter(&store);
    assert!(limiter.check(&1).await.unwrap().is_allowed());
    vouched.server.kill();
    while store.is_connected() {
        // Whoever asks finds out.
        let _ = limiter.check(&1).await;
    }
    assert!(limiter.check(&1).await.is_err(), "nobody waits for a server that is gone");
    let options: Vec<_> = vouched.options.iter().map(String::as_str).collect();
    vouched.server.start_again(&options);
    store.connected().await;
    assert!(limiter.check(&1).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_server_that_cannot_show_who_it_is_is_refused_and_the_error_says_why() {
    // Nobody we trust vouches for it.
    let vouched = Vouched::for_name("localhost");
    for builder in [vouched.builder(), vouched.builder().root_certificates(STRANGER)] {
        let why = whole(&builder.connect().await.unwrap_err());
        assert!(why.contains("no connection to Redis at localhost:") && why.contains("UnknownIssuer"), "{why}");
    }
    // It is somebody else.
    let elsewhere = Vouched::for_name("elsewhere");
    let builder = elsewhere.builder().root_certificates(AUTHORITY);
    let why = whole(&builder.connect().await.unwrap_err());
    assert!(why.contains("not valid for name") && why.contains("elsewhere.example"), "{why}");
    // And nothing was written.
    assert_eq!(elsewhere.server.run::<u64>(&["DBSIZE"]), 0);
}

#[tokio::test]
async fn root_certificates_that_cannot_be_used_are_an_error_with_the_way_out() {
    let build = |url: &str, pem: &str| {
        RedisStore::builder(url, secret()).root_certificates(pem).build().unwrap_err().to_string()
    };
    assert!(build("redis://localhost", AUTHORITY).contains("rediss://"));
    assert!(build("rediss://localhost", "no certificate").contains("BEGIN CERTIFICATE"));
    let broken = AUTHORITY.replacen("MII", "%%%", 1);
    assert!(build("rediss://localhost", &broken).contains("give them in PEM"));
}
