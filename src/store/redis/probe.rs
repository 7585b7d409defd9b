//! Finds out whether decisions would be answered: there is a connection, to a server that takes writes and runs the
//! script.

use std::sync::Arc;

use super::{
    Inner, names,
    question::{Deciding, Question},
};
use crate::{charge::Verdicts, error::StoreError};

/// How long the key lives that a probe writes, in milliseconds.
const LIVES: u64 = 1_000;

/// Asks `question`, which only looks, after a write that leaves nothing behind.
pub(super) async fn ask(inner: Arc<Inner>, question: Question) -> Result<Verdicts, StoreError> {
    let live = inner.link.hurry().await?;
    let mut write = ::redis::cmd("SET");
    write.arg(names::probe(&inner.deployment)).arg(b"").arg("PX").arg(LIVES);
    match tokio::time::timeout(inner.settings.deadline, live.command(&inner.link, &write)).await {
        Ok(written) => written?,
        Err(_) => {
            live.timed_out(&inner.link);
            return Err(StoreError::new("Redis did not answer within the deadline"));
        }
    };
    Deciding::new(&inner, live, question).await
}
