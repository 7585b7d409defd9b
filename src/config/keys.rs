//! What is counted by, as a closure.

use std::{borrow::Cow, sync::Arc};

use http::{HeaderName, Request};

use super::{
    data::{Key, KeyTable, Origin},
    registry::{self, Registry},
    texts::Text,
};
use crate::key::{self, DynExtractor, TrustedProxies};

/// Returns the extractor, or `None` where a name in it is not known, which was told of.
pub(super) fn extractor<B: 'static>(
    said: &Key,
    registry: &Registry<B>,
    proxies: Option<&TrustedProxies>,
) -> Option<DynExtractor<Request<B>>> {
    match said {
        Key::Name(name) => named(&name.0, registry, proxies),
        Key::Table(table) => from_table(table, registry, proxies),
    }
}

fn named<B: 'static>(
    name: &str,
    registry: &Registry<B>,
    proxies: Option<&TrustedProxies>,
) -> Option<DynExtractor<Request<B>>> {
    Some(match name {
        "peer_addr" => Arc::new(key::peer_addr()),
        "client_addr" => Arc::new(key::client_addr(proxies?.clone())),
        "bearer_token" => Arc::new(key::bearer_token()),
        "host" => Arc::new(key::host()),
        "method" => Arc::new(key::method()),
        #[cfg(feature = "axum")]
        "matched_path" => Arc::new(key::matched_path()),
        other => Arc::clone(registry.keys.get(other)?),
    })
}

fn from_table<B: 'static>(
    table: &KeyTable,
    registry: &Registry<B>,
    proxies: Option<&TrustedProxies>,
) -> Option<DynExtractor<Request<B>>> {
    let each = |keys: &[Key]| keys.iter().map(|key| extractor(key, registry, proxies)).collect::<Option<Vec<_>>>();
    if let Some(header) = &table.header {
        return Some(Arc::new(key::header(&header.0)));
    }
    if let Some(Text(name)) = &table.cookie {
        return Some(Arc::new(key::cookie(name.clone())));
    }
    if let Some(Text(name)) = &table.query {
        return Some(Arc::new(key::query(name.clone())));
    }
    if let (Some(Text(name)), Some(path)) = (&table.path_param, &table.path) {
        return Some(Arc::new(key::path_param(&path.0, name.clone())));
    }
    if let Some(bits) = table.peer_addr_by {
        return Some(Arc::new(key::peer_addr_by(prefix(bits.0))));
    }
    if let Some(bits) = table.client_addr_by {
        return Some(Arc::new(key::client_addr(proxies?.clone().v6_prefix(prefix(bits.0)))));
    }
    if let Some(keys) = &table.all {
        let keys = each(keys)?;
        return Some(Arc::new(move |request| key::all_of(&keys, request)));
    }
    let keys = each(table.first.as_ref()?)?;
    Some(Arc::new(move |request| key::first_of(&keys, request)))
}

pub(super) fn prefix(bits: u64) -> u8 {
    u8::try_from(bits).unwrap_or(128)
}

/// The names in a key that are not built in, with the path of each.
pub(super) fn names(said: &Key, path: &str, found: &mut Vec<(String, String)>) {
    match said {
        Key::Name(Text(name)) if registry::KEYS.contains(&name.as_str()) => {}
        Key::Name(Text(name)) => found.push((name.clone(), path.into())),
        Key::Table(table) => {
            for (field, keys) in [("all", &table.all), ("first", &table.first)] {
                for (at, key) in keys.iter().flatten().enumerate() {
                    names(key, &format!("{path}.{field}[{at}]"), found);
                }
            }
        }
    }
}

/// Returns where a tier's or a customer's name comes from.
pub(super) fn origin<B: 'static>(said: &Origin, registry: &Registry<B>) -> Option<registry::Origin<B>> {
    match said {
        Origin::Name(Text(name)) => registry.values.get(name).cloned(),
        Origin::Table(table) => {
            let name: HeaderName = table.header.as_ref()?.0.parse().ok()?;
            Some(Arc::new(move |request| request.headers().get(&name)?.to_str().ok().map(Cow::Borrowed)))
        }
    }
}
