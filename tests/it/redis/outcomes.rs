//! The promise, of a layer whose rules depend on how requests end, over a server.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use http::Request;
use tokio::runtime::Runtime;
use tollgate::{
    LimiterBuilder,
    bucket::{FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket},
    store::RedisStore,
};

use super::{by_the_clock, server::Server};
use crate::{
    promise::{
        Promise,
        outcomes::{Wire, counts_what_stands, keeps_its_bound},
    },
    random::from_env,
};

struct OverRedis {
    runtime: Runtime,
    store: RedisStore,
    _server: Server,
}

impl OverRedis {
    fn new() -> Self {
        let (server, runtime) = (Server::start(), Runtime::new().unwrap());
        let store = runtime.block_on(by_the_clock(&server.url()).connect()).unwrap();
        Self { runtime, store, _server: server }
    }
}

impl Wire for OverRedis {
    fn store(&self, builder: LimiterBuilder<Request<()>>) -> LimiterBuilder<Request<()>> {
        builder.store(self.store.clone())
    }

    fn drive(&self, poll: &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) {
        self.runtime.block_on(poll_fn(poll));
    }

    /// What was charged for somebody who has left comes back when its answer is read.
    fn wait(&self) -> Option<()> {
        self.runtime.block_on(self.store.flush()).unwrap();
        Some(())
    }

    fn is_long(&self) -> bool {
        true
    }
}

fn runs() -> u64 {
    from_env("TOLLGATE_REDIS_RUNS", 20)
}

fn counts<B: Promise>(exact: bool) {
    counts_what_stands::<B>(&OverRedis::new(), runs(), exact);
}

fn bounds<B: Promise>() {
    keeps_its_bound::<B>(&OverRedis::new(), runs());
}

#[test]
fn counts_what_stands_of_any_order_of_ends() {
    counts::<TokenBucket>(false);
    counts::<FixedWindow>(true);
    counts::<SlidingWindowLog>(true);
    counts::<SlidingWindowCounter>(true);
}

#[test]
fn never_passes_more_than_the_limit_of_what_stands() {
    bounds::<TokenBucket>();
    bounds::<FixedWindow>();
    bounds::<SlidingWindowLog>();
    bounds::<SlidingWindowCounter>();
}
