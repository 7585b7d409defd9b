//! Keys from bytes that clients choose: never a panic, and never an answer that depends on anything but the request.
#![no_main]

use http::{HeaderValue, Request, Uri, header};
use libfuzzer_sys::fuzz_target;
use tollgate::{
    Key,
    key::{self, Secret},
    when,
};

type KeyFn = Box<dyn for<'a> Fn(&'a Request<()>) -> Option<Key<'a>>>;

fuzz_target!(|data: (&str, Vec<u8>, Vec<u8>, Vec<u8>)| {
    let (uri, authorization, cookie, host) = data;
    let mut request = Request::new(());
    if let Ok(uri) = uri.parse::<Uri>() {
        *request.uri_mut() = uri;
    }
    for (name, value) in [(header::AUTHORIZATION, authorization), (header::COOKIE, cookie), (header::HOST, host)] {
        if let Ok(value) = HeaderValue::from_bytes(&value) {
            request.headers_mut().insert(name, value);
        }
    }
    let secret = Secret::new([7; 16]);
    let keys: [KeyFn; 7] = [
        Box::new(key::bearer_token()),
        Box::new(key::cookie("sid")),
        Box::new(key::host()),
        Box::new(key::query("q")),
        Box::new(key::path_param("/users/{id}/{*rest}", "id")),
        Box::new(key::header("host")),
        Box::new(key::method()),
    ];
    for key in keys {
        let id = || key(&request).map(|key| key.id(&secret));
        assert_eq!(id(), id());
    }
    let _ = when::path("/users/{id}")(&request) | when::host("example.com")(&request) | when::preflight()(&request);
});
