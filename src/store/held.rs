//! A receipt between the start of a request and its end.

use std::{fmt, sync::Arc};

use http::Response;

use super::{Receipt, lock::Mutex};
use crate::charge::Ending;

/// What a request that has started holds until its end: in the extensions of every HTTP request that holds a place
/// [in flight](crate::Limit::in_flight), for handlers whose work goes on after the response's body has ended. Clones
/// are the same.
///
/// A handler that upgrades its connection takes the receipt into its own task. The place is then free when that task
/// drops the receipt, and the end of the response's body, which has none, means nothing. Left alone, the places are
/// free when the body has ended or is dropped.
///
/// # Examples
///
/// ```
/// use axum::{body::Body, extract::Request, response::Response};
/// use tollgate::store::HeldReceipt;
///
/// async fn upgrade(mut request: Request) -> Response {
///     let receipt = request.extensions_mut().remove::<HeldReceipt>().and_then(|held| held.take());
///     tokio::spawn(async move {
///         // .. speak the other protocol for as long as it takes ..
///         drop(receipt);
///     });
///     Response::builder().status(101).body(Body::empty()).unwrap()
/// }
/// # let response = tokio::runtime::Runtime::new().unwrap().block_on(upgrade(Request::default()));
/// # assert_eq!(response.status(), 101);
/// ```
#[derive(Clone)]
pub struct HeldReceipt {
    own: Shared,
    /// What a layer further out had put there.
    outer: Option<Arc<HeldReceipt>>,
}

/// Whoever takes the receipt out ends it.
type Shared = Arc<Mutex<Option<Receipt>>>;

impl HeldReceipt {
    /// Returns the receipt, of all layers that the request came through, unless it was taken or the response has ended.
    /// Whoever has it holds the places.
    ///
    /// **Locking**: only for the taking.
    pub fn take(&self) -> Option<Receipt> {
        let own = self.own.lock().take();
        let outer = self.outer.as_ref().and_then(|outer| outer.take());
        match own {
            Some(own) => Some(own.within(outer)),
            None => outer,
        }
    }

    /// Adds what a layer further out had put there.
    pub(crate) fn within(self, outer: Option<Self>) -> Self {
        Self { outer: outer.map(Arc::new), ..self }
    }
}

impl fmt::Debug for HeldReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldReceipt(..)")
    }
}

/// Apart from the look whether there is anything to end: most bodies hold nothing.
#[cold]
fn end(receipt: &Shared) {
    // The lock is let go before the store is told.
    let ended = receipt.lock().take();
    drop(ended);
}

/// Ends what is held, if anything, when it is dropped, unless a handler has taken it.
#[derive(Clone, Default)]
pub(crate) struct EndsOnDrop(Option<Shared>);

impl EndsOnDrop {
    fn new(receipt: Receipt) -> Self {
        Self(Some(Arc::new(Mutex::new(Some(receipt)))))
    }

    /// Whether there was anything to end.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Ends it now.
    #[inline]
    pub(crate) fn end(&self) {
        if let Some(receipt) = &self.0 {
            end(receipt);
        }
    }

    /// Lets somebody else end it.
    pub(crate) fn into_held(mut self) -> Option<HeldReceipt> {
        Some(HeldReceipt { own: self.0.take()?, outer: None })
    }

    fn held(&self) -> Option<HeldReceipt> {
        Some(HeldReceipt { own: Arc::clone(self.0.as_ref()?), outer: None })
    }
}

impl From<HeldReceipt> for EndsOnDrop {
    fn from(held: HeldReceipt) -> Self {
        Self(Some(held.own))
    }
}

impl Drop for EndsOnDrop {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for EndsOnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EndsOnDrop").field(&self.is_some()).finish()
    }
}

/// What a request that has started still has to end. Dropped, it has ended without a response.
#[derive(Debug)]
pub(crate) struct Ongoing {
    /// Until the response's head is there.
    until_head: Option<Receipt>,
    /// Until its body has ended.
    until_end: EndsOnDrop,
}

impl Ongoing {
    /// What is left to end of a request that starts now.
    pub(crate) fn starting(mut receipt: Receipt) -> Self {
        receipt.started();
        let until_end = receipt.take_out(Ending::is_by_body).map(EndsOnDrop::new).unwrap_or_default();
        let until_head = receipt.take_out(|ending| !ending.stands());
        Self { until_head, until_end }
    }

    /// What a handler may take.
    pub(crate) fn held(&self) -> Option<HeldReceipt> {
        self.until_end.held()
    }

    /// Tells the rules that depend on it how the request was answered.
    pub(crate) fn judge(&mut self, head: &Response<()>) {
        if let Some(receipt) = &mut self.until_head {
            receipt.judge(head);
        }
    }

    /// Ends what ends with the response's head, and returns what ends with its body.
    pub(crate) fn answered(self) -> EndsOnDrop {
        self.until_end
    }
}
